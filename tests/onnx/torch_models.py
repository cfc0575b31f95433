"""Models of PyTorch that check_torch.py exports: the twins of the zoo, small and whole, and models that nobody here wrote.

Each has a function that makes it, with random weights, and one that makes inputs of given sizes. The first of `sizes` is that
of the export; the others must run in the same file. `open` names the sizes that stay open, for each input by dim.
"""
import dataclasses
import importlib
import pathlib
import sys
import typing

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "scripts"))
import fixtures  # noqa: E402


@dataclasses.dataclass
class Case:
    make: typing.Callable  # -> nn.Module, which takes and gives tensors
    inputs: typing.Callable  # (*sizes) -> list of tensors
    sizes: list
    open: list  # of {dim: name} or None
    multiples: dict = dataclasses.field(default_factory=dict)  # of sizes that must be
    zoo: str = ""  # the name of our twin, whose weights are those of `saved`
    saved: typing.Callable = None
    exact: bool = True  # what PyTorch gives is computed in f64
    older: bool = False  # exported through TorchScript, as the newer exporter fails
    halves: bool = False  # weights are rounded to f16, as those of tests/data/zoo are


class Called(nn.Module):
    """A model, and how it is called."""

    def __init__(self, model, call):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs):
        return tuple(self.call(self.model, *inputs))


def images(n, c, h, w):
    return [torch.randn(n, c, h, w)]


BATCHES = [2, 1, 5]
PICTURE = [{0: "batch", 2: "height", 3: "width"}]
TEXT = {0: "batch", 1: "tokens"}


# ---- the zoo ---------------------------------------------------------------------------------------------------------
def sentences(vocab):
    return lambda n, count: fixtures.sentences(n, count, vocab)()


class CachedGPT2(nn.Module):
    """GPT-2 that takes and gives what it keeps of earlier tokens: keys and values [layers, 2, n, heads, tokens, size]."""

    def __init__(self, **config):
        super().__init__()
        self.model = fixtures.gpt2(**config)

    def forward(self, ids, past):
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer in range(past.shape[0]):
            cache.update(past[layer, 0], past[layer, 1], layer)
        out = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
        kept = torch.stack([torch.stack([layer.keys, layer.values]) for layer in out.past_key_values.layers])
        return out.logits, kept


def zoo(small):
    models = fixtures.small_models() if small else fixtures.full_models()
    vocab = {"bert": 17, "minilm": 17, "gpt2": 17} if small else {"bert": 30522, "minilm": 30522, "gpt2": 50257}
    text = [(2, 7), (1, 9), (5, 4)] if small else [(2, 48), (1, 64), (5, 17)]
    cases = {}
    for name, (make, _, call, saved) in models.items():
        if name in ("rnn", "gru", "lstm"):
            continue
        multiples, options = {}, {"zoo": "" if small else name, "saved": saved, "halves": small, "exact": small}
        if name in ("bert", "minilm"):
            inputs, sizes, opened = sentences(vocab[name]), text, [TEXT] * 3
        elif name == "gpt2":
            inputs, sizes, opened = (lambda n, t: [torch.randint(0, vocab["gpt2"], (n, t))]), text, [TEXT]
        elif name.startswith("keyword"):
            features = 6 if small else 40
            inputs, opened = (lambda n, t, features=features: [torch.randn(n, t, features)]), [{0: "batch", 1: "frames"}]
            sizes = [(2, 9), (1, 7), (5, 8)] if small else [(2, 101), (1, 80), (5, 98)]
        elif name.startswith("vit"):
            side = 12 if small else 224
            inputs, sizes, opened = images, [(n, 3, side, side) for n in BATCHES], [{0: "batch"}]
        else:
            bands = {"unet": fixtures.BANDS, "resnet-bottleneck": 2}.get(name, 3)
            multiples = {"height": 32, "width": 32} if name.startswith("unet") else {}
            if multiples:
                sizes = [(2, bands, 64, 96), (1, bands, 96, 32), (5, bands, 32, 64)]
            elif small:
                sizes = [(2, bands, 64, 64), (1, bands, 70, 49), (5, bands, 33, 64)]
            else:
                sizes = [(2, bands, 224, 224), (1, bands, 160, 192), (5, bands, 97, 128)]
            inputs, opened = images, PICTURE
        make_called = lambda make=make, call=call: Called(make(), call)
        cases[name] = Case(make_called, inputs, sizes, opened, multiples, **options)
    heads, size, layers = (3, 4, 2) if small else (12, 64, 12)
    config = dict(n_embd=12, n_layer=2, n_head=3, n_positions=24, vocab_size=17, initializer_range=0.2) if small else {}
    cases["gpt2-cached"] = Case(
        lambda: CachedGPT2(**config),
        lambda n, t, past: [torch.randint(0, vocab["gpt2"], (n, t)), torch.randn(layers, 2, n, heads, past, size)],
        [(2, 3, 5), (1, 1, 9), (5, 2, 4)], [TEXT, {2: "batch", 4: "past"}])
    return cases


# ---- models of others ------------------------------------------------------------------------------------------------
def vision(name, *sizes, opened=PICTURE, inside="", **options):
    def make():
        return getattr(importlib.import_module("torchvision.models" + inside), name)(weights=None, **options)

    sizes = sizes or ((2, 3, 96, 96), (1, 3, 128, 96), (5, 3, 64, 80))
    return Case(make, images, list(sizes), opened, exact=False)


def dense(name, **options):
    """Segmentation: a dict of pictures."""
    case = vision(name, (2, 3, 64, 64), (1, 3, 96, 64), (5, 3, 80, 48), inside=".segmentation", weights_backbone=None, **options)
    return dataclasses.replace(case, make=lambda: Called(case.make(), lambda model, x: list(model(x).values())))


TINY = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=97)


def tiny(model, config, call, inputs, sizes, opened, **options):
    def make():
        import transformers

        settings = getattr(transformers, config)(**options)
        return Called(getattr(transformers, model)(settings), call)

    return Case(make, inputs, sizes, opened)


def masked(model, ids, mask):
    return tensors(model(input_ids=ids, attention_mask=mask))


def causal(model, ids, mask):
    return [model(input_ids=ids, attention_mask=mask, use_cache=False).logits]


def translated(model, ids, mask, given):
    return [model(input_ids=ids, attention_mask=mask, decoder_input_ids=given, use_cache=False).logits]


def pictured(model, x):
    return tensors(model(pixel_values=x))


def tensors(out):
    return [value for value in out.values() if isinstance(value, torch.Tensor)]


def ids_and_mask(n, count):
    lengths = torch.randint(max(1, count // 2), count + 1, (n, 1))
    lengths[0] = count
    return [torch.randint(2, 97, (n, count)), (torch.arange(count) < lengths).long()]


def text_model(model, config, call=masked, **options):
    return tiny(model, config, call, ids_and_mask, [(2, 7), (1, 11), (5, 4)], [TEXT, TEXT], **(TINY | options))


def image_model(model, config, call=pictured, side=32, **options):
    settings = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=side,
                    patch_size=8)
    return tiny(model, config, call, images, [(n, 3, side, side) for n in BATCHES], [{0: "batch"}], **(settings | options))


def encoder_decoder(n, count, given):
    return [*ids_and_mask(n, count), torch.randint(2, 97, (n, given))]


def older(case):
    return dataclasses.replace(case, older=True)


def transformers_models():
    llama = dict(num_key_value_heads=2, max_position_embeddings=64)
    seq2seq = dict(vocab_size=97, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                   decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64,
                   pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2)
    both = dict(inputs=encoder_decoder, sizes=[(2, 7, 5), (1, 9, 1), (5, 4, 6)],
                opened=[TEXT, TEXT, {0: "batch", 1: "given"}])
    waves = lambda n, count: [torch.randn(n, count)]
    wave = dict(inputs=waves, sizes=[(2, 4000), (1, 5300), (5, 3100)], opened=[{0: "batch", 1: "samples"}])
    clip = dict(text_config=TINY | dict(max_position_embeddings=16, eos_token_id=96, bos_token_id=95),
                vision_config=dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                                   image_size=32, patch_size=8), projection_dim=16)
    return {
        "distilbert": text_model("DistilBertModel", "DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=48),
        "roberta": text_model("RobertaForMaskedLM", "RobertaConfig", max_position_embeddings=64),
        "albert": text_model("AlbertModel", "AlbertConfig", embedding_size=16),
        "electra": text_model("ElectraModel", "ElectraConfig", embedding_size=16),
        "mpnet": text_model("MPNetModel", "MPNetConfig", max_position_embeddings=64),
        "deberta-v2": text_model("DebertaV2Model", "DebertaV2Config", relative_attention=True, pos_att_type=["c2p", "p2c"],
                                 position_buckets=16, max_position_embeddings=64, type_vocab_size=0),
        "modernbert": text_model("ModernBertModel", "ModernBertConfig", pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                 cls_token_id=1, sep_token_id=2, local_attention=4),
        "xlnet": older(text_model("XLNetModel", "XLNetConfig", d_model=32, n_layer=2, n_head=4, d_inner=48)),
        "llama": text_model("LlamaForCausalLM", "LlamaConfig", causal, **llama),
        "mistral": text_model("MistralForCausalLM", "MistralConfig", causal, sliding_window=4, **llama),
        "qwen2": text_model("Qwen2ForCausalLM", "Qwen2Config", causal, **llama),
        "qwen3": text_model("Qwen3ForCausalLM", "Qwen3Config", causal, head_dim=8, **llama),
        "gemma2": text_model("Gemma2ForCausalLM", "Gemma2Config", causal, head_dim=8, sliding_window=4, **llama),
        "phi3": text_model("Phi3ForCausalLM", "Phi3Config", causal, pad_token_id=0, **llama),
        "gpt-neox": text_model("GPTNeoXForCausalLM", "GPTNeoXConfig", causal, max_position_embeddings=64),
        "opt": text_model("OPTForCausalLM", "OPTConfig", causal, ffn_dim=48, max_position_embeddings=64, word_embed_proj_dim=32),
        "bloom": text_model("BloomForCausalLM", "BloomConfig", causal, n_layer=2, n_head=4),
        "falcon": text_model("FalconForCausalLM", "FalconConfig", causal),
        "mamba": text_model("MambaForCausalLM", "MambaConfig", state_size=4, intermediate_size=64,
                            call=lambda model, ids, mask: [model(input_ids=ids, use_cache=False).logits]),
        "t5": older(tiny("T5ForConditionalGeneration", "T5Config", translated, **both, vocab_size=97, d_model=32, d_kv=8, d_ff=48,
                         num_layers=2, num_heads=4)),
        "bart": tiny("BartForConditionalGeneration", "BartConfig", translated, **both, **seq2seq),
        "marian": tiny("MarianMTModel", "MarianConfig", translated, **both, **seq2seq),
        "whisper": tiny("WhisperForConditionalGeneration", "WhisperConfig",
                        lambda model, x, ids: [model(input_features=x, decoder_input_ids=ids, use_cache=False).logits],
                        lambda n, t: [torch.randn(n, 8, 40), torch.randint(2, 97, (n, t))], [(2, 5), (1, 3), (5, 7)],
                        [{0: "batch"}, TEXT], **seq2seq | dict(num_mel_bins=8, max_source_positions=20, max_target_positions=24)),
        "clip": tiny("CLIPModel", "CLIPConfig",
                     lambda model, ids, mask, x: (lambda out: [out.logits_per_image, out.text_embeds, out.image_embeds])(
                         model(input_ids=ids, attention_mask=mask, pixel_values=x)),
                     lambda n, t: [*ids_and_mask(n, t), torch.randn(n, 3, 32, 32)], [(2, 7), (1, 11), (5, 4)],
                     [TEXT, TEXT, {0: "batch"}], **clip),
        "vit": image_model("ViTModel", "ViTConfig"),
        "deit": image_model("DeiTModel", "DeiTConfig"),
        "beit": older(image_model("BeitModel", "BeitConfig", use_relative_position_bias=True)),
        "dinov2": image_model("Dinov2Model", "Dinov2Config"),
        "swin": older(tiny("SwinModel", "SwinConfig", pictured, images, [(n, 3, 32, 32) for n in BATCHES], [{0: "batch"}],
                           image_size=32, patch_size=2, embed_dim=8, depths=[1, 2], num_heads=[2, 4], window_size=4)),
        "convnext": tiny("ConvNextModel", "ConvNextConfig", pictured, images, [(n, 3, 32, 32) for n in BATCHES], [{0: "batch"}],
                         hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
        "segformer": image_model("SegformerForSemanticSegmentation", "SegformerConfig", side=64, hidden_sizes=[8, 8, 16, 16],
                                 depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16),
        "detr": image_model("DetrForObjectDetection", "DetrConfig",
                            lambda model, x: (lambda out: [out.logits, out.pred_boxes])(model(pixel_values=x)), side=64,
                            use_timm_backbone=True, use_pretrained_backbone=False, backbone="resnet18", d_model=32, num_queries=7,
                            encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
                            encoder_ffn_dim=48, decoder_ffn_dim=48),
        "yolos": image_model("YolosForObjectDetection", "YolosConfig", num_detection_tokens=5, image_size=[32, 32],
                             call=lambda model, x: (lambda out: [out.logits, out.pred_boxes])(model(pixel_values=x))),
        "dpt": image_model("DPTForDepthEstimation", "DPTConfig", neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16,
                           num_hidden_layers=4, backbone_out_indices=[0, 1, 2, 3], is_hybrid=False, readout_type="project"),
        "wav2vec2": tiny("Wav2Vec2ForCTC", "Wav2Vec2Config", lambda model, x: [model(x).logits], **wave, **TINY,
                         conv_dim=[16] * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4),
        "hubert": tiny("HubertModel", "HubertConfig", lambda model, x: [model(x).last_hidden_state], **wave, **TINY,
                       conv_dim=[16] * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4),
    }


def torchvision_models():
    fixed = [{0: "batch"}]
    square = lambda side: tuple((n, 3, side, side) for n in BATCHES)
    plain = {name: vision(name) for name in (
        "alexnet", "vgg11_bn", "resnext50_32x4d", "wide_resnet50_2", "densenet121", "squeezenet1_1", "shufflenet_v2_x0_5",
        "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5", "efficientnet_b0", "efficientnet_v2_s", "regnet_y_400mf",
        "regnet_x_400mf", "convnext_tiny")}
    return plain | {
        "inception_v3": vision("inception_v3", (2, 3, 128, 128), (1, 3, 160, 128), (5, 3, 112, 96), init_weights=False),
        "googlenet": older(vision("googlenet", init_weights=False)),
        "swin_t": vision("swin_t"),
        "swin_v2_t": vision("swin_v2_t"),
        "maxvit_t": vision("maxvit_t", *square(224), opened=fixed),
        "deeplabv3_resnet50": dense("deeplabv3_resnet50"),
        "deeplabv3_mobilenet_v3_large": dense("deeplabv3_mobilenet_v3_large"),
        "fcn_resnet50": dense("fcn_resnet50"),
        "lraspp_mobilenet_v3_large": dense("lraspp_mobilenet_v3_large"),
        "fasterrcnn_mobilenet_v3_large_320_fpn": detection("fasterrcnn_mobilenet_v3_large_320_fpn"),
        "retinanet_resnet50_fpn": detection("retinanet_resnet50_fpn"),
        "ssdlite320_mobilenet_v3_large": detection("ssdlite320_mobilenet_v3_large"),
        "maskrcnn_resnet50_fpn": detection("maskrcnn_resnet50_fpn"),
        "keypointrcnn_resnet50_fpn": detection("keypointrcnn_resnet50_fpn"),
        "raft_small": Case(lambda: Called(vision("raft_small", inside=".optical_flow").make(),
                                          lambda model, a, b: [model(a, b, num_flow_updates=3)[-1]]),
                           lambda n: [torch.randn(n, 3, 128, 128), torch.randn(n, 3, 128, 128)],
                           [(n,) for n in BATCHES], [{0: "batch"}] * 2),
        "r3d_18": Case(lambda: vision("r3d_18", inside=".video").make(), lambda n: [torch.randn(n, 3, 8, 48, 48)],
                       [(n,) for n in BATCHES], fixed),
        "mvit_v1_b": Case(lambda: vision("mvit_v1_b", inside=".video").make(), lambda n: [torch.randn(n, 3, 16, 224, 224)],
                          [(1,), (2,)], fixed),
    }


def detection(name):
    """A batch of one picture: torchvision's detectors take a list."""

    def call(model, x):
        return [value for value in model([x])[0].values()]

    case = vision(name, inside=".detection", weights_backbone=None)
    return Case(lambda: Called(case.make(), call), lambda h, w: [torch.rand(3, h, w)], [(120, 160), (96, 96)], [None],
                exact=False, older=True)


# ---- models of our own, of layers that the others lack --------------------------------------------------------------
class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layers = getattr(nn, kind)(6, 8, 2, **options)

    def forward(self, x):
        out, last = self.layers(x)
        return (out, *last) if isinstance(last, tuple) else (out, last)


class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Transformer(16, 4, 2, 2, 24, batch_first=True, activation="gelu", norm_first=True)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.model(source, target, tgt_mask=mask, tgt_is_causal=True)


class Denoiser(nn.Module):
    """A UNet of a diffusion model: group norms, SiLU, embedded time, attention over places."""

    class Block(nn.Module):
        def __init__(self, c_in, c_out, time):
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(4, c_in), nn.GroupNorm(4, c_out)
            self.conv1, self.conv2 = nn.Conv2d(c_in, c_out, 3, padding=1), nn.Conv2d(c_out, c_out, 3, padding=1)
            self.time = nn.Linear(time, c_out)
            self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

        def forward(self, x, t):
            h = self.conv1(nn.functional.silu(self.norm1(x))) + self.time(nn.functional.silu(t))[:, :, None, None]
            return self.skip(x) + self.conv2(nn.functional.silu(self.norm2(h)))

    class Attention(nn.Module):
        def __init__(self, c, heads):
            super().__init__()
            self.heads, self.norm = heads, nn.GroupNorm(4, c)
            self.qkv, self.out = nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

        def forward(self, x):
            n, c, h, w = x.shape
            q, k, v = self.qkv(self.norm(x)).reshape(n, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            return x + self.out(y.transpose(-1, -2).reshape(n, c, h, w))

    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.begin = nn.Conv2d(3, 8, 3, padding=1)
        self.down1, self.halve = self.Block(8, 8, 32), nn.Conv2d(8, 16, 3, 2, 1)
        self.down2, self.look = self.Block(16, 16, 32), self.Attention(16, 2)
        self.up1, self.enlarge = self.Block(32, 16, 32), nn.Upsample(scale_factor=2, mode="nearest")
        self.up2, self.norm, self.end = self.Block(24, 8, 32), nn.GroupNorm(4, 8), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x, t):
        angles = t[:, None].float() * torch.exp(-torch.arange(8) * 0.7)[None]
        t = self.time(torch.cat((angles.sin(), angles.cos()), 1))
        x = self.begin(x)
        one = self.down1(x, t)
        two = self.look(self.down2(self.halve(one), t))
        y = self.up1(torch.cat((two, self.halve(x)), 1), t)
        y = self.up2(torch.cat((self.enlarge(y), one), 1), t)
        return self.end(nn.functional.silu(self.norm(y)))


class Spectrum(nn.Module):
    """An audio front end: log mel energies of a short-time Fourier transform."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.register_buffer("mel", torch.rand(33, 10))

    def forward(self, x):
        frames = torch.stft(x, 64, 16, window=self.window, center=True, return_complex=True)
        power = torch.view_as_real(frames).square().sum(-1)
        return torch.log(power.transpose(1, 2) @ self.mel + 1e-6)


class Sampler(nn.Module):
    """What models do with places: grids, resizing, sorting, scattering, counting."""

    def forward(self, x, index):
        theta = torch.tensor([[0.9, 0.1, 0.0], [-0.1, 0.8, 0.1]]).expand(x.shape[0], 2, 3)
        grid = nn.functional.affine_grid(theta, list(x.shape), align_corners=False)
        warped = nn.functional.grid_sample(x, grid, padding_mode="border", align_corners=False)
        half = nn.functional.interpolate(x, scale_factor=0.5, mode="bicubic", align_corners=False)
        large = nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True)
        best, where = torch.topk(x.flatten(1), 3)
        spread = torch.zeros_like(x.flatten(1)).scatter_add(1, index, torch.ones_like(index, dtype=x.dtype))
        running = torch.cumsum(x, -1)
        shuffled = nn.functional.pixel_shuffle(x, 2)
        padded = nn.functional.pad(x, (1, 2, 2, 1), mode="reflect")
        column = index[:, None, None, :].clamp(max=x.shape[3] - 1).expand(-1, 4, x.shape[2], -1)
        picked = torch.where(x > 0, x, x.abs().log1p()).gather(3, column)
        return warped, half, large, best, where, spread, running, shuffled, padded, picked


class Branches(nn.Module):
    """torch.cond: another path for dark pictures."""

    def __init__(self):
        super().__init__()
        self.bright, self.dark = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.bright(x).relu(), lambda x: self.dark(x).tanh(), (x,))


def own_models():
    def recurrent(kind, **options):
        return Case(lambda: Recurrent(kind, batch_first=True, **options), lambda n, t: [torch.randn(n, t, 6)],
                    [(2, 9), (1, 5), (5, 12)], [{0: "batch", 1: "frames"}])

    return {
        "rnn": recurrent("RNN"), "rnn-relu-both": recurrent("RNN", nonlinearity="relu", bidirectional=True),
        "gru": recurrent("GRU"), "gru-both": recurrent("GRU", bidirectional=True),
        "lstm-both": recurrent("LSTM", bidirectional=True), "lstm-projected": recurrent("LSTM", proj_size=5),
        "transformer": Case(EncoderDecoder, lambda n, s, t: [torch.randn(n, s, 16), torch.randn(n, t, 16)],
                            [(2, 6, 4), (1, 3, 5), (5, 8, 2)], [{0: "batch", 1: "source"}, {0: "batch", 1: "target"}]),
        "denoiser": Case(Denoiser, lambda n, h, w: [torch.randn(n, 3, h, w), torch.randint(0, 1000, (n,))],
                         [(2, 16, 24), (1, 8, 32), (5, 24, 8)], [PICTURE[0], {0: "batch"}], {"height": 2, "width": 2}),
        "spectrum": Case(Spectrum, lambda n, t: [torch.randn(n, t)], [(2, 400), (1, 333), (5, 640)],
                         [{0: "batch", 1: "samples"}]),
        "sampler": Case(Sampler, lambda n, h, w: [torch.randn(n, 4, h, w), torch.randint(0, 4 * h * w, (n, 5))],
                        [(2, 8, 12), (1, 6, 10), (5, 14, 8)], [PICTURE[0], {0: "batch"}], {"height": 2, "width": 2}),
        "branches": Case(Branches, lambda n: [torch.randn(n, 8)], [(n,) for n in BATCHES], [{0: "batch"}]),
    }


def all_sets():
    return {"small": lambda: zoo(True), "zoo": lambda: zoo(False), "torchvision": torchvision_models,
            "transformers": transformers_models, "own": own_models}

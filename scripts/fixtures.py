#!/usr/bin/env python3
"""fixtures.py: what PyTorch, torchvision, transformers and segmentation_models_pytorch give for random weights.

usage: fixtures.py small [NAME...]          small models, into tests/data/zoo
       fixtures.py full FOLDER [NAME...]    the models of the zoo in full size

Each model has a folder of two files. model.safetensors has the weights as the model's authors publish them;
check.safetensors has inputs, outputs, and gradients of the weights, where those of the outputs are the outputs with their
last dim reversed. All of this is computed in f64 and rounded to f32, in evaluation, so that a test measures the rounding of
the library alone. The weights of small models are in f16.
"""
import pathlib
import sys
import tempfile

import safetensors.torch
import torch
from torch import nn

BANDS = 4


class KeywordLSTM(nn.Module):
    """The logits come from what the last layer ends with, in each of its directions."""

    def __init__(self, features=40, hidden=128, layers=2, classes=12, bidirectional=False):
        super().__init__()
        self.directions = 2 if bidirectional else 1
        self.lstm = nn.LSTM(features, hidden, layers, batch_first=True, bidirectional=bidirectional)
        self.fc = nn.Linear(hidden * self.directions, classes)

    def forward(self, x):
        _, (hidden, _) = self.lstm(x)
        return self.fc(torch.cat(tuple(hidden[-self.directions:]), dim=1))


def small_resnet(block, layers, width, channels=3, classes=5, base=None):
    """torchvision's ResNet, or the encoder that segmentation_models_pytorch makes of it, with other channels."""
    from torchvision.models.resnet import ResNet

    class Small(base or ResNet):
        def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
            if planes == 64:
                self.inplanes = width
            return super()._make_layer(block, planes * width // 64, blocks, stride, dilate)

    if base:
        wide = [width * block.expansion << i for i in range(4)]
        model = Small(out_channels=[channels, width, *wide], depth=5, block=block, layers=layers)
    else:
        model = Small(block, layers)
        model.fc = nn.Linear(8 * width * block.expansion, classes)
    model.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
    model.bn1 = nn.BatchNorm2d(width)
    return model


def small_mobilenet():
    from torchvision.models import MobileNetV2
    from torchvision.ops import Conv2dNormActivation

    model = MobileNetV2(3, width_mult=0.25, inverted_residual_setting=[[1, 32, 1, 1], [2, 32, 2, 2], [2, 64, 1, 2]])
    model.features[-1] = Conv2dNormActivation(16, 24, kernel_size=1, activation_layer=nn.ReLU6)
    model.classifier[1] = nn.Linear(24, 3)
    return model


def small_vit():
    from torchvision.models import VisionTransformer

    return VisionTransformer(image_size=12, patch_size=4, num_layers=2, num_heads=3, hidden_dim=12, mlp_dim=16, num_classes=5)


def small_unet():
    import segmentation_models_pytorch as smp
    from segmentation_models_pytorch.encoders.resnet import ResNetEncoder
    from torchvision.models.resnet import BasicBlock

    model = smp.Unet("resnet34", encoder_weights=None, in_channels=BANDS, classes=2, decoder_channels=(4, 4, 3, 2, 2))
    model.encoder = small_resnet(BasicBlock, [1, 1, 1, 1], 2, BANDS, base=ResNetEncoder)
    model.decoder = type(model.decoder)(encoder_channels=(BANDS, 2, 2, 4, 8, 16), decoder_channels=(4, 4, 3, 2, 2), n_blocks=5)
    return model


def bert(**config):
    from transformers import BertConfig, BertForPreTraining

    return BertForPreTraining(BertConfig(attn_implementation="eager", **config))


def sentence_bert(**config):
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(attn_implementation="eager", **config))


def gpt2(**config):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(attn_implementation="eager", **config))


def torchvision_model(name):
    import torchvision

    return getattr(torchvision.models, name)()


def unet():
    import segmentation_models_pytorch as smp

    return smp.Unet("resnet34", encoder_weights=None)


# ---- inputs ----------------------------------------------------------------------------------------------------------
def images(*shape):
    return lambda: [torch.randn(shape)]


def tokens(batch, count, vocab):
    return lambda: [torch.randint(0, vocab, (batch, count))]


def sentences(batch, count, vocab):
    """Tokens, a mask whose zeros are padding, and types of tokens."""

    def make():
        lengths = torch.randint(count // 2, count, (batch, 1))
        lengths[0] = count
        mask = (torch.arange(count) < lengths).long()
        return [torch.randint(0, vocab, (batch, count)), mask, torch.randint(0, 2, (batch, count))]

    return make


# ---- calls -----------------------------------------------------------------------------------------------------------
def plain(model, x):
    return [model(x)]


def bert_outputs(model, ids, mask, types):
    out = model.bert(input_ids=ids, attention_mask=mask, token_type_ids=types)
    return [out.last_hidden_state, out.pooler_output]


def sentence_vectors(model, ids, mask, types):
    """Mean pooling and normalisation, as modules 1 and 2 of all-MiniLM-L6-v2 do them."""
    hidden = model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
    counts = mask.unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * counts).sum(1) / counts.sum(1).clamp(min=1e-9)
    return [nn.functional.normalize(mean, p=2, dim=1)]


def gpt2_logits(model, ids):
    return [model(input_ids=ids).logits]


def recurrent_outputs(model, x, *states):
    output, last = model(x, tuple(states) if len(states) > 1 else states[0])
    return [output, *(last if isinstance(last, tuple) else (last,))]


# ---- files -----------------------------------------------------------------------------------------------------------
def as_saved(model):
    if hasattr(model, "save_pretrained") and hasattr(model, "config_class"):  # transformers leaves tied weights out
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            return safetensors.torch.load_file(folder + "/model.safetensors")
    return model.state_dict()


def with_position_ids(model):
    """Files of the time when this was a saved buffer, as that of all-MiniLM-L6-v2."""
    return {**as_saved(model), "embeddings.position_ids": torch.arange(model.config.max_position_embeddings).unsqueeze(0)}


def with_causal_masks(model):
    """The file of GPT-2 has the causal masks, and no "transformer." in front."""
    weights = {name.removeprefix("transformer."): t for name, t in as_saved(model).items()}
    block = model.config.n_positions
    mask = torch.ones(1, 1, block, block).tril()
    return {**weights, **{f"h.{i}.attn.bias": mask.clone() for i in range(model.config.n_layer)}}


def spread(model):
    """Weights that no test can mistake for others: nothing is all ones or zeros."""
    with torch.no_grad():
        for name, t in [*model.named_parameters(), *model.named_buffers()]:
            if not t.is_floating_point():
                continue
            if name.endswith("running_var"):
                t.uniform_(0.5, 1.5)
            elif t.dim() < 2:
                t.add_(torch.randn_like(t) * 0.2)
            elif not t.any():
                t.normal_(0, 0.1)


def small_models():
    from torchvision.models.resnet import BasicBlock, Bottleneck

    text = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=16, vocab_size=17,
                max_position_embeddings=10, initializer_range=0.2)
    states = lambda count: lambda: [torch.randn(4, 3, 7)] + [torch.randn(4, 3, 5) for _ in range(count)]
    return {
        "resnet-basic": (lambda: small_resnet(BasicBlock, [2, 1, 1, 1], 2), images(1, 3, 33, 20), plain, as_saved),
        "resnet-bottleneck": (lambda: small_resnet(Bottleneck, [1, 1, 1, 1], 1, 2), images(1, 2, 40, 33), plain, as_saved),
        "mobilenetv2": (small_mobilenet, images(1, 3, 21, 18), plain, as_saved),
        "vit": (small_vit, images(2, 3, 12, 12), plain, as_saved),
        "bert": (lambda: bert(**text), sentences(3, 9, 17), bert_outputs, as_saved),
        "minilm": (lambda: sentence_bert(**text), sentences(3, 9, 17), sentence_vectors, with_position_ids),
        "gpt2": (lambda: gpt2(n_embd=12, n_layer=2, n_head=3, n_positions=10, vocab_size=17, initializer_range=0.2),
                 tokens(2, 9, 17), gpt2_logits, with_causal_masks),
        "keyword-lstm": (lambda: KeywordLSTM(6, 5, 2, 4), images(3, 8, 6), plain, as_saved),
        "keyword-lstm-both": (lambda: KeywordLSTM(6, 5, 2, 4, True), images(3, 8, 6), plain, as_saved),
        "unet": (small_unet, images(1, BANDS, 32, 32), plain, as_saved),
        "rnn": (lambda: nn.RNN(7, 5, 2, nonlinearity="relu", bidirectional=True), states(1), recurrent_outputs, as_saved),
        "gru": (lambda: nn.GRU(7, 5, 2, bidirectional=True), states(1), recurrent_outputs, as_saved),
        "lstm": (lambda: nn.LSTM(7, 5, 2, bidirectional=True), states(2), recurrent_outputs, as_saved),
    }


def full_models():
    picture = images(1, 3, 224, 224)
    vision = {"resnet18": "resnet18", "resnet34": "resnet34", "resnet50": "resnet50", "mobilenetv2": "mobilenet_v2",
              "vit-b16": "vit_b_16"}
    all = {ours: (lambda theirs=theirs: torchvision_model(theirs), picture, plain, as_saved) for ours, theirs in vision.items()}
    small_bert = dict(num_hidden_layers=6, hidden_size=384, intermediate_size=1536)
    return all | {
        "bert": (bert, sentences(2, 64, 30522), bert_outputs, as_saved),
        "minilm": (lambda: sentence_bert(**small_bert), sentences(2, 64, 30522), sentence_vectors, with_position_ids),
        "gpt2": (gpt2, tokens(2, 64, 50257), gpt2_logits, with_causal_masks),
        "keyword-lstm": (KeywordLSTM, images(2, 101, 40), plain, as_saved),
        "unet-resnet34": (unet, images(1, 3, 128, 96), plain, as_saved),
    }


def write(folder, dtype, make, inputs, call, saved):
    torch.manual_seed(1)
    model = make().eval()
    spread(model)
    model.to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: t.detach().clone().contiguous() for name, t in saved(model).items()}
    safetensors.torch.save_file(weights, folder / "model.safetensors")

    given = inputs()
    model.double()
    outputs = call(model, *[x.double() if x.is_floating_point() else x for x in given])
    torch.autograd.backward(outputs, [y.detach().float().double().flip(-1) for y in outputs])
    check = {f"{what}.{i}": t for what, all in [("inputs", given), ("outputs", outputs)] for i, t in enumerate(all)}
    check |= {"gradients." + name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    rounded = {name: (t.detach().float() if t.is_floating_point() else t).contiguous() for name, t in check.items()}
    safetensors.torch.save_file(rounded, folder / "check.safetensors", {"made_by": "PyTorch " + torch.__version__})
    print(folder, sum(f.stat().st_size for f in folder.iterdir()), "bytes", flush=True)


def main(arguments):
    if arguments[:1] == ["small"]:
        folder, names = pathlib.Path(__file__).parent.parent / "tests/data/zoo", arguments[1:]
        models, dtype = small_models(), torch.float16
    elif arguments[:1] == ["full"] and len(arguments) > 1:
        folder, names = pathlib.Path(arguments[1]), arguments[2:]
        models, dtype = full_models(), torch.float32
    else:
        sys.exit("error: usage: fixtures.py small [NAME...] | full FOLDER [NAME...]")
    for name in names:
        if name not in models:
            sys.exit(f"error: there is no {name} among {', '.join(models)}")
    for name in names or models:
        write(folder / name, dtype, *models[name])


if __name__ == "__main__":
    main(sys.argv[1:])

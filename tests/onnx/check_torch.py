"""check_torch.py TESSERA SET [NAME...] [--exporter dynamo|torchscript] [--keep FOLDER [--strip]]: models of PyTorch through its
exporter (opset 20, with open sizes), run by `tessera run` at several sizes beside PyTorch and ONNX Runtime.

SET: small, zoo, torchvision, transformers or own (torch_models.py). Errors are relative L2 norms to what PyTorch
gives, in f64 where that is soon done.
Whatever ONNX Runtime runs must run here, and agree to 1e-5, or as well as ONNX Runtime does. `tessera export` then writes the
file again, and the zoo's own model with the same weights; ONNX's checker judges what was written, and both run it.
The last line is 'N passed, N failed[, N skipped]'; skipped is what the exporter or ONNX Runtime lacks.
"""
import argparse
import contextlib
import copy
import dataclasses
import io
import logging
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
import onnx
import safetensors.torch
import torch

import torch_models
from check_export import error_of, session_of

LIMIT = 1e-5
# What our writer says of models that read what they have computed, and of operators that ONNX lacks.
REFUSALS = ("has no memory, so its value cannot be read", "depends on values", "is symbolic",
            "has no counterpart in ONNX")


class Skipped(Exception):
    pass


@contextlib.contextmanager
def quiet():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{words[1]} exits {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


def flat(values):
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    return [t for value in values for t in flat(value)]


def numpy(t):
    return t.detach().cpu().numpy()


def reference(model, inputs, exact):
    """What PyTorch gives in f64 as f32, or in f32 where a model insists on that, or takes minutes in f64."""
    with torch.no_grad():
        plain = flat(model(*[x.clone() for x in inputs]))
        if not exact:
            return [numpy(y) for y in plain]
        try:
            exact = flat(copy.deepcopy(model).double()(*[x.double() if x.is_floating_point() else x for x in inputs]))
        except (RuntimeError, TypeError):
            return [numpy(y) for y in plain]
        # A value that is chosen by comparing, such as an index, is that of f32.
        return [numpy(e.to(p.dtype) if p.is_floating_point() and e.shape == p.shape else p) for e, p in zip(exact, plain)]


def export(model, case, path, exporter):
    inputs = case.inputs(*case.sizes[0])
    names = [f"input_{i}" for i in range(len(inputs))]
    if exporter == "torchscript":
        axes = {name: dims for name, dims in zip(names, case.open) if dims}
        return torch.onnx.export(model, tuple(inputs), str(path), dynamo=False, opset_version=20, input_names=names,
                                 dynamic_axes=axes)
    known = {}

    def dim(name):
        if name not in known:
            step = case.multiples.get(name, 1)
            known[name] = torch.export.Dim(name) if step == 1 else step * torch.export.Dim("_" + name)
        return known[name]

    shapes = tuple({d: dim(name) for d, name in dims.items()} if dims else None for dims in case.open)
    signature_is_list = isinstance(model, torch_models.Called)  # forward(*inputs)
    torch.onnx.export(model, tuple(inputs), str(path), dynamo=True, opset_version=20, input_names=names,
                      dynamic_shapes=(shapes,) if signature_is_list else shapes)


def strip(path):
    """Leaves out what the exporter says of its source, and puts the weights into the file."""
    model = onnx.load(str(path))
    del model.graph.value_info[:]
    for part in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    path.with_name(path.name + ".data").unlink(missing_ok=True)
    onnx.save(model, str(path))


def run_ours(tessera, path, inputs, outputs, folder):
    words = []
    for name, x in inputs.items():
        np.save(folder / f"{name}.npy", x)
        words += ["--input", f"{name}={folder / name}.npy"]
    run(tessera, "run", path, *words, "--output", folder / "out")
    return [np.load(folder / "out" / (re.sub(r"[/\\:]", "_", name) + ".npy")) for name in outputs]


class Peer:
    """ONNX Runtime on a file. What it lacks is no failure of ours, if ours fails, too."""

    def __init__(self, path):
        self.session, self.refuses = None, ""
        try:
            self.session = session_of(path)
        except Exception as e:
            self.refuses = line_of(e)

    def run(self, given):
        if not self.session:
            return None
        taken = {x.name for x in self.session.get_inputs()}
        try:
            return self.session.run(None, {name: x for name, x in given.items() if name in taken})
        except Exception as e:
            self.refuses = line_of(e)


def line_of(error):
    return str(error).replace("\n", " ")[:300]


def agrees(ours, theirs, between):
    return ours <= LIMIT or (between <= LIMIT if theirs == np.inf else ours <= 2 * theirs)


def compare(tessera, path, model, case, folder, seed):
    """A line on the worst errors over all sizes, and the sizes that ran. Raises where one does not that ONNX Runtime runs."""
    peer, graph, worst, theirs, ran = Peer(path), onnx.load(str(path), load_external_data=False).graph, 0, 0, []
    outputs = [y.name for y in graph.output]
    for sizes in case.sizes:
        torch.manual_seed(seed)
        inputs = case.inputs(*sizes)
        want = reference(model, inputs, case.exact)
        given = {x.name: numpy(t) for x, t in zip(graph.input, inputs)}
        other = peer.run(given)
        try:
            got = run_ours(tessera, path, given, outputs, folder)
        except RuntimeError as e:
            if other is None:
                continue
            raise RuntimeError(f"at {sizes} {e}")
        ran.append(sizes)
        for i, name in enumerate(outputs):
            ours, their = error_of(got[i], want[i]), error_of(other[i], want[i]) if other else 0
            between = error_of(got[i], other[i]) if other else 0
            if not agrees(ours, their, between):
                raise RuntimeError(f"{name} differs at {sizes}: {ours:.1e}, ONNX Runtime {their:.1e}, {between:.1e} between "
                                   f"them; {got[i].dtype}{list(got[i].shape)} for {want[i].dtype}{list(want[i].shape)}")
            worst, theirs = max(worst, ours), max(theirs, their)
    if not ran:
        raise Skipped("ONNX Runtime: " + peer.refuses)
    beside = f"ONNX Runtime {theirs:.1e}" if not peer.refuses else "ONNX Runtime refuses"
    return f"{worst:.1e}, {beside}, {len(ran)} of {len(case.sizes)} sizes", ran


def onnx_inputs(path):
    return onnx.load(str(path), load_external_data=False).graph.input


def sizes_of(path, inputs):
    """The open sizes of a file, where inputs are those."""
    named = {d.dim_param: size for x, t in zip(onnx_inputs(path), inputs)
             for d, size in zip(x.type.tensor_type.shape.dim, t.shape) if d.dim_param}
    return [word for name, size in named.items() for word in ("--dim", f"{name}={size}")]


def look(tessera, path, case, folder):
    """The commands that look into a file, and time it."""
    sizes = sizes_of(path, case.inputs(*case.sizes[0]))
    text = run(tessera, "info", path, "--graph", folder / "graph.dot", *sizes)
    lost = [word.split("=")[0] for word in sizes[1::2] if word.split("=")[0] not in text]
    if "not supported" in text or lost:
        raise RuntimeError(f"info names no {lost}, or: " + text[text.find("not supported"):][:300])
    if "fails" in text:  # drawn integers are no indices of this model
        return
    batch = [word for word in sizes[1::2] if word.startswith("batch=")]
    rest = [word for pair in zip(sizes[::2], sizes[1::2]) if pair[1] not in batch for word in pair]
    run(tessera, "bench", "model", path, "--seconds", "0.01", *rest, *(["--batch", batch[0][6:]] if batch else []))


def write_again(tessera, path, model, case, folder):
    """The file as our writer writes what it computes at the first of the sizes."""
    case = dataclasses.replace(case, sizes=case.sizes[:1])
    written = folder / "again.onnx"
    try:
        run(tessera, "export", path, "-o", written, *sizes_of(path, case.inputs(*case.sizes[0])))
    except RuntimeError as e:
        if any(text in str(e) for text in REFUSALS):
            return "refused: " + str(e)[-150:]
        raise
    onnx.checker.check_model(str(written), full_check=True)
    return compare(tessera, written, model, case, folder, 3)[0]


def write_twin(tessera, model, case, folder):
    """The model of ours with the same weights."""
    weights, written = folder / "weights.safetensors", folder / "written.onnx"
    with quiet():
        saved = {k: t.detach().clone().contiguous() for k, t in case.saved(model.model).items()}
    safetensors.torch.save_file(saved, weights)
    run(tessera, "export", case.zoo, "--weights", weights, "-o", written)
    onnx.checker.check_model(str(written), full_check=True)
    dims = onnx_inputs(written)[0].type.tensor_type.shape.dim
    first = [d.dim_value or size for d, size in zip(dims, case.sizes[0])]  # images are of one size
    case = dataclasses.replace(case, sizes=[(batch, *first[1:]) for batch in torch_models.BATCHES])
    return compare(tessera, written, model, case, folder, 4)[0]


def check(tessera, name, case, folder, options):
    torch.manual_seed(1)
    model = case.make().eval()
    torch_models.fixtures.spread(model)
    if case.halves:
        model.half().float()
    exporter = "torchscript" if case.older else options.exporter
    path = (options.keep or folder) / f"{name}.onnx"
    begin = time.time()
    if not (options.keep and path.exists()):
        try:
            with quiet():
                export(model, case, path, exporter)
            if options.strip:
                strip(path)
        except Exception as e:
            path.unlink(missing_ok=True)
            raise Skipped(f"the exporter fails: {type(e).__name__} " + str(e).replace("\n", " ")[-300:])
    took = time.time() - begin
    text, ran = compare(tessera, path, model, case, folder, 2)
    look(tessera, path, case, folder)
    text += "; again " + write_again(tessera, path, model, dataclasses.replace(case, sizes=ran[-1:]), folder)
    if case.zoo and exporter == "dynamo":
        text += "; our twin " + write_twin(tessera, model, case, folder)
    return f"{text} (export {took:.0f} s, all {time.time() - begin:.0f} s)"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("tessera", type=pathlib.Path)
    parser.add_argument("set", choices=torch_models.all_sets())
    parser.add_argument("names", nargs="*")
    parser.add_argument("--exporter", choices=["dynamo", "torchscript"], default="dynamo")
    parser.add_argument("--keep", type=pathlib.Path, help="folder of the exported files, which are used again")
    parser.add_argument("--strip", action="store_true", help="exported files hold nothing but the model")
    options = parser.parse_intermixed_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(2)
    cases = torch_models.all_sets()[options.set]()
    unknown = [name for name in options.names if name not in cases]
    if unknown:
        sys.exit(f"error: there is no {unknown[0]} among {', '.join(cases)}")
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    for name in options.names or cases:
        with tempfile.TemporaryDirectory() as temporary:
            try:
                text = check(options.tessera.absolute(), name, cases[name], pathlib.Path(temporary), options)
                verdict = "passed"
            except Skipped as e:
                verdict, text = "skipped", str(e)
            except Exception as e:
                verdict, text = "failed", f"{type(e).__name__} {e}".replace("\n", " ")
        counts[verdict] += 1
        print(f"{name}: {verdict}: {text}", flush=True)
    line = f"{counts['passed']} passed, {counts['failed']} failed"
    print(line + (f", {counts['skipped']} skipped" if counts["skipped"] else ""))
    return counts["failed"] != 0


if __name__ == "__main__":
    sys.exit(main())

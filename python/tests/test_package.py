"""Everything that the headers declare is there, and the package loads fast."""
import ast
import importlib
import importlib.metadata
import inspect
import pathlib
import re
import subprocess
import sys

import pytest
import tessera

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "python"))
import generate  # noqa: E402

HEADERS = sorted((ROOT / "include" / "tessera").glob("ops*.h"))


def declared(header):
    """Names of functions of namespace tessera, found without the generator's parser."""
    text = re.sub(r"//[^\n]*", "", header.read_text())
    text = re.sub(r"struct \w+ \{.*?\n\};", "", text, flags=re.S)
    text = re.sub(r"^(inline|template|#)[^\n]*", "", text, flags=re.M)
    return set(re.findall(r"^[A-Z:a-z_<>, ]+ (\w+)\(", text, flags=re.M)) - {"if"}


@pytest.mark.parametrize("header", HEADERS, ids=lambda h: h.stem)
def test_every_function_of_the_headers_is_bound(header):
    names = declared(header)
    assert len(names) > 4
    missing = sorted(n for n in names if not hasattr(tessera._C, generate.FUNCTION_NAMES.get(n, n)))
    assert not missing, f"{header.name} declares what python/generate.py does not bind: {missing}"


def test_every_function_and_overload_is_generated():
    for header in HEADERS:
        read = generate.read(header)
        assert {f.name for f in read.functions} == declared(header)


# Operators that have another name in Python, or are steps of a function.
UNDER_ANOTHER_NAME = {
    "add_scalar": "add", "mul_scalar": "mul", "mul_scalar_": "Tensor.mul_", "pow_scalar": "pow", "sum_wide": "sum",
    "sliding_window": "sliding_windows", "scatter_prod": "scatter_reduce", "scatter_amax": "scatter_reduce",
    "scatter_amin": "scatter_reduce", "lstm_layer": "lstm", "gru_layer": "gru", "rnn_layer": "rnn",
    "sparse_lines": "resize", "sparse_planes": "resize", "max_in_windows": "max_pool2d", "recurrent_net": "nn.LSTM",
    "map_graph": "erfinv", "grid_sample_input_grad": "grid_sample", "grid_sample_grid_grad": "grid_sample",
    "roi_align_input_grad": "roi_align", "matmul_wide": "matmul", "matmul_gelu_grad": "mlp",
    "conv2d_input_grad": "conv2d", "conv2d_weight_grad": "conv2d", "conv2d_act": "onnx.load_onnx", "batch_norm_add": "batch_norm",
    "batch_norm_inference": "batch_norm", "move_estimates_": "batch_norm", "cross_entropy_and_gradient_": "cross_entropy",
    "uniform": "rand", "draw": "multinomial", "adam_": "optim.AdamW", "sgd_": "optim.SGD", "global_norm": "optim.grad_norm",
    "unscale_": "amp.GradScaler", "update_scale_": "amp.GradScaler", "to_device": "Tensor.to", "pack": "nn.Module.pack",
    "gather_ranks": "distributed.gather", "scatter_ranks": "distributed.scatter", "all_reduce_": "distributed.all_reduce_",
} | {name: "distributed." + name for name in ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")}


def found(name):
    """What Python calls an operator or a function of the library."""
    name = UNDER_ANOTHER_NAME.get(name, generate.FUNCTION_NAMES.get(name, name))
    for place in (tessera, tessera.Tensor, tessera.nn.functional, tessera._C):
        value = place
        for part in name.split("."):
            value = getattr(value, part, None)
        if callable(value):
            return value
    return None


def named_in(document):
    return re.findall(r"^\| `(\w+)[(`]", (ROOT / "docs" / document).read_text(), re.M)


@pytest.mark.parametrize("document,least", [("operators.md", 170), ("functions.md", 290)])
def test_what_the_documents_list_is_callable(document, least):
    names = [n for n in named_in(document) if not re.search(r"_backward_?$", n) and n != "max_norm"]
    assert len(names) > least - 50 and len(named_in(document)) > least
    missing = [n for n in names if found(n) is None]
    assert not missing, f"{document} lists what Python does not have: {missing}"
    assert all(n in named_in("operators.md") for n in UNDER_ANOTHER_NAME)


MODULES = [tessera, tessera._C, tessera.nn, tessera.nn.functional, tessera.nn.init, tessera.linalg, tessera.special, tessera.statistics,
           tessera.fft, tessera.signal.windows, tessera.masked, tessera.optim,
           tessera.amp, tessera.autograd, tessera.io, tessera.models, tessera.onnx, tessera.cuda]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_every_function_has_a_docstring(module):
    bare = []
    for name, value in vars(module).items():
        if name.startswith("_") or not callable(value):
            continue
        text = inspect.cleandoc(value.__doc__ or "")
        if hasattr(value, "__nb_signature__"):  # it begins with the signature
            text = "\n".join(text.split("\n\n")[1:])
        if len(text) < 4:
            bare.append(name)
    assert not bare


def test_methods_and_names():
    for name in "exp sum mean reshape permute matmul sort clamp gather softmax max view to numpy float half".split():
        assert callable(getattr(tessera.Tensor, name)), name
    for name in "conv2d linear layer_norm gelu cross_entropy scaled_dot_product_attention interpolate max_pool2d".split():
        assert callable(getattr(tessera.nn.functional, name)), name
    assert tessera.exp.__doc__ is not None and "Hendrycks" in tessera._C.gelu_tanh.__doc__


def test_import_needs_no_numpy():
    code = "import sys, tessera; assert 'numpy' not in sys.modules, 'numpy'; print(tessera.ones(2).sum().item())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         env={"PYTHONPATH": str(pathlib.Path(tessera.__file__).parents[1]), "PATH": ""})
    assert out.stdout.strip() == "2.0"


FOLDER = pathlib.Path(tessera.__file__).parent
needs_stubs = pytest.mark.skipif(not (FOLDER / "__init__.pyi").exists(), reason="stubs are made with the wheel")


@needs_stubs
def test_stubs_name_what_is_there():
    text = (FOLDER / "_C" / "__init__.pyi").read_text()
    assert "class Tensor" in text and re.search(r"def softmax\(input: Tensor, dim: int\) -> Tensor", text)
    assert (FOLDER / "py.typed").exists()
    for path in FOLDER.rglob("*.pyi"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tessera"):
                module = importlib.import_module(node.module)
                missing = [n.name for n in node.names if not hasattr(module, n.name)]
                assert not missing, f"{path.name}: {node.module} has no {missing}"


def names_in(stub):
    tree = ast.parse(stub.read_text())
    defined = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    defined |= {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign)}
    return defined | {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}


@needs_stubs
def test_stubs_name_everything():
    for stub, owner in ((FOLDER / "__init__.pyi", tessera), (FOLDER / "nn" / "__init__.pyi", tessera.nn),
                        (FOLDER / "nn" / "functional.pyi", tessera.nn.functional), (FOLDER / "linalg.pyi", tessera.linalg)):
        public = {n for n, v in vars(owner).items() if not n.startswith("_") and (callable(v) or isinstance(v, tessera.dtype))}
        assert not public - names_in(stub), stub
    tree = ast.parse((FOLDER / "_C" / "__init__.pyi").read_text())
    tensor = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Tensor")
    said = {n.name for n in tensor.body if isinstance(n, ast.FunctionDef)}
    said |= {t.id for n in tensor.body if isinstance(n, ast.Assign) for t in n.targets}
    assert not {n for n in vars(tessera.Tensor) if not n.startswith("_")} - said


PROGRAM = """
from collections.abc import Sequence
import tessera
from tessera import nn, optim, train as loop

class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(4, width), nn.Linear(width, 2)
        self.pool = nn.MaxPool2d(2, stride=2)
        self.scale = nn.Parameter(tessera.ones(1))

    def forward(self, x: tessera.Tensor) -> tessera.Tensor:
        out: tessera.Tensor = self.out(nn.functional.gelu(self.hidden(x)))
        return out * self.scale

def train(steps: int, device: str) -> float:
    net = Net(8).to(device).train()
    optimizer = optim.AdamW(net.parameters(), lr=1e-2)
    scaler = tessera.amp.GradScaler()
    loss = tessera.zeros(())
    for _ in range(steps):
        x = tessera.randn(16, 4, device=device)
        target = (x[:, 0] > 0).long()
        with tessera.autocast(dtype=tessera.bfloat16):
            loss = nn.functional.cross_entropy(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optim.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    def of_batch(batch: Sequence[tessera.Tensor]) -> tessera.Tensor:
        return nn.functional.cross_entropy(net(batch[0]), batch[1])
    options = loop.Options(until=loop.epochs(3), accumulate=2, amp="bf16", checkpoint="c")
    columns = [tessera.randn(16, 4), tessera.zeros(16).long()]
    trainer = loop.Trainer(net, optimizer, loop.shuffled_rows(columns, 4, seed=1), of_batch, options, epoch=4)
    last: float = trainer.run(on_step=lambda info: print(info.step, info.loss)).steps[-1].loss
    with tessera.no_grad():
        y = tessera.softmax(net(tessera.ones(1, 4)), 1).max(1)[1].float().numpy()
    state: dict[str, tessera.Tensor] = net.state_dict()
    tessera.save_safetensors("net.safetensors", state)
    tessera.onnx.save(net, tessera.ones(1, 4), "net.onnx")
    answers = tessera.run("net.onnx", {"input": y})
    half = tessera.cat([tessera.arange(3.0), tessera.tensor([1, 2])]).half().view(-1, 5)
    half += 1
    half /= 2.0
    dataset = tessera.data.StreamingDataset([tessera.data.Stream("a", proportion=1.0)], batch_size=steps, shuffle=True)
    dataset.load_state_dict(dataset.state_dict())
    batches: list[dict[str, object]] = [sample for sample in dataset][:dataset.epoch_size]
    print(half.shape, len(answers), tessera.models.names(), tessera.cuda.is_available(), scaler.get_scale(), batches)
    return loss.item()
"""
WRONG = """
import tessera
x = tessera.softmax(tessera.ones(3), "0")
y: int = tessera.ones(3).numel
z = tessera.ones(3).no_such_method()
o = tessera.train.Options(clip="much")
"""


@needs_stubs
def test_type_checkers_see_the_package(tmp_path):
    pytest.importorskip("mypy")
    for name, text in (("right.py", PROGRAM), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(text)
    environment = {"PATH": ""} if FOLDER.parent.name == "site-packages" else {"MYPYPATH": str(FOLDER.parent), "PATH": ""}
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "--python-executable", sys.executable]
    right = subprocess.run([*command, "right.py"], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert right.returncode == 0 and right.stdout.startswith("Success"), right.stdout + right.stderr
    wrong = subprocess.run([*command, "wrong.py"], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert re.findall(r"wrong.py:(\d+): error", wrong.stdout) == ["3", "4", "5", "6"], wrong.stdout + wrong.stderr


def test_the_extension_is_of_the_right_abi():
    """One file, and one wheel, for Python 3.12 and all that follow; 3.11 has its own."""
    stable = sys.version_info >= (3, 12)
    name = pathlib.Path(tessera._C.__file__).name
    assert name == "_C.abi3.so" if stable else name.startswith("_C.cpython-311-")
    try:
        installed = importlib.metadata.distribution("tessera")
    except importlib.metadata.PackageNotFoundError:
        return  # it runs from a build folder
    tags = re.findall(r"^Tag: ([^-]+-[^-]+)-", installed.read_text("WHEEL"), re.M)
    assert tags == ["cp312-abi3" if stable else "cp311-cp311"]
    assert installed.version == tessera.__version__


def test_the_documents_example_runs():
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)[1]
    assert block.count("\n") <= 24
    out = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=ROOT,
                         env={"PYTHONPATH": str(pathlib.Path(tessera.__file__).parents[1]), "PATH": ""})
    assert out.returncode == 0, out.stderr
    assert re.search(r"loss 0\.\d+", out.stdout)

"""Everything that the headers declare is there, and the package loads fast."""
import ast
import importlib
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


def test_stubs_name_what_is_there():
    folder = pathlib.Path(tessera.__file__).parent
    stubs = folder / "_C" / "__init__.pyi"
    if not stubs.exists():
        pytest.skip("stubs are made with the wheel")
    text = stubs.read_text()
    assert "class Tensor" in text and re.search(r"def softmax\(input: Tensor, dim: int\) -> Tensor", text)
    assert (folder / "py.typed").exists()
    for path in (folder / "_C").rglob("*.pyi"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tessera."):
                module = importlib.import_module(node.module)
                missing = [n.name for n in node.names if not hasattr(module, n.name)]
                assert not missing, f"{path.name}: {node.module} has no {missing}"


def test_the_documents_example_runs():
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)[1]
    assert block.count("\n") <= 24
    out = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=ROOT,
                         env={"PYTHONPATH": str(pathlib.Path(tessera.__file__).parents[1]), "PATH": ""})
    assert out.returncode == 0, out.stderr
    assert re.search(r"loss 0\.\d+", out.stdout)

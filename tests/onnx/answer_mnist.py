"""answer_mnist.py: writes tests/data/mnist/answers.npy, the scores f32[10000, 10] that ONNX Runtime gives the test images."""
import gzip
from pathlib import Path

import numpy as np
import onnxruntime

folder = Path(__file__).parent.parent / "data" / "mnist"
with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
    images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 1, 28, 28).astype(np.float32)
session = onnxruntime.InferenceSession(str(folder / "mnist.onnx"), providers=["CPUExecutionProvider"])
scores = np.concatenate([session.run(None, {"Input3": image})[0] for image in images])
np.save(folder / "answers.npy", scores)
print(onnxruntime.__version__, scores.shape, scores.dtype)

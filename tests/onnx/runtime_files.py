#!/usr/bin/env python3
"""runtime_files.py: makes tests/data/onnxruntime of tests/data/torch, by the optimizers of ONNX Runtime.

usage: runtime_files.py      with a Python that has onnxruntime and onnx
"""
import pathlib

import onnxruntime
from onnxruntime.transformers import optimizer

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
MODEL_TYPES = {"bert": "bert", "gpt2": "gpt2", "vit": "vit", "mobilenetv2": None, "minilm": None}  # None: in a session

for name, model_type in MODEL_TYPES.items():
    source, target = str(DATA / "torch" / f"{name}.onnx"), str(DATA / "onnxruntime" / f"{name}.onnx")
    if model_type:
        made = optimizer.optimize_model(source, model_type=model_type, num_heads=0, hidden_size=0, opt_level=0)
        made.save_model_to_file(target)
        continue
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = target
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

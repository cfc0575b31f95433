"""Files: safetensors, npy, checkpoints."""
from . import _C

load_safetensors, save_safetensors, safetensors_metadata = (
    _C._io.load_safetensors, _C._io.save_safetensors, _C._io.safetensors_metadata)
load_npy, save_npy = _C._io.load_npy, _C._io.save_npy
load_checkpoint, save_checkpoint = _C._io.load_checkpoint, _C._io.save_checkpoint

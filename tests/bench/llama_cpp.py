#!/usr/bin/env python3
"""Weights for llama.cpp, and the build of its training; run by the peer's Python.

    llama_cpp.py weights MODEL.safetensors HEADS KEY_HEADS CONTEXT OUTPUT.gguf    a llama with Hugging Face's names
    llama_cpp.py build FOLDER OUTPUT                                              llama_cpp.cpp with FOLDER's libraries
"""
import subprocess
import sys
from pathlib import Path

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
OUTSIDE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}


def name_of(name):
    if name in OUTSIDE:
        return OUTSIDE[name]
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{NAMES[part]}.weight"


def write_weights(model, heads, key_heads, context, output):
    import gguf
    import numpy as np
    from safetensors.numpy import load_file
    tensors = {name_of(name): tensor.astype(np.float32) for name, tensor in load_file(model).items()}
    vocabulary, width = tensors["token_embd.weight"].shape
    file = gguf.GGUFWriter(output, "llama")
    file.add_vocab_size(vocabulary)
    file.add_context_length(context)
    file.add_embedding_length(width)
    file.add_block_count(1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blk.")))
    file.add_feed_forward_length(len(tensors["blk.0.ffn_gate.weight"]))
    file.add_head_count(heads)
    file.add_head_count_kv(key_heads)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_freq_base(10000.0)
    file.add_rope_dimension_count(width // heads)
    file.add_tokenizer_model("none")
    for name, tensor in tensors.items():
        for part, count in (("attn_q", heads), ("attn_k", key_heads)):
            if part in name:  # llama.cpp rotates neighbours, where Hugging Face's llama rotates halves
                tensor = tensor.reshape(count, 2, len(tensor) // count // 2, -1).swapaxes(1, 2).reshape(tensor.shape)
        file.add_tensor(name, np.ascontiguousarray(tensor))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def build(folder, output):
    folder = Path(folder).resolve()
    header = folder / "include/llama.h"
    libraries = next((path for path in (folder / "build/bin", folder / "build/src", folder / "build") if (path / "libllama.so").is_file()), None)
    if not header.is_file() or libraries is None:
        sys.exit(f"expected llama.cpp's include/llama.h and build/bin/libllama.so in {folder}, found one missing; name a "
                 "copy of https://github.com/ggml-org/llama.cpp, built with cmake -B build && cmake --build build --target llama")
    flags = ["-DFSDP_LLAMA_LOAD_MODE"] if "LLAMA_LOAD_MODE_NONE" in header.read_text(encoding="utf-8") else []
    driver = Path(__file__).resolve().parent / "llama_cpp.cpp"
    subprocess.run(["c++", "-std=c++17", "-O2", *flags, "-I", str(folder / "include"), "-I", str(folder / "ggml/include"),
                    str(driver), "-L", str(libraries), "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}",
                    f"-Wl,-rpath-link,{libraries}", "-o", str(output)], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["weights"] and len(sys.argv) == 7:
        write_weights(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
    elif sys.argv[1:2] == ["build"] and len(sys.argv) == 4:
        build(sys.argv[2], sys.argv[3])
    else:
        sys.exit(__doc__)

#!/usr/bin/env python3
"""Reads a GGUF file with gguf-py, runs it with llama.cpp, and prints what they find.

  llama_cpp_reference.py logits FILE [ADAPTER]   the logits of two sequences of 48 tokens, one number a line
  llama_cpp_reference.py tokens FILE TEXT...     the ids of each text, one text a line
  llama_cpp_reference.py quantise TYPE           stdin: float32 elements, stdout: their bytes by gguf.quants
  llama_cpp_reference.py dequantise TYPE         stdin: bytes, stdout: their float32 elements by gguf.quants

Needs gguf, and for logits and tokens llama_cpp (llama-cpp-python).
"""
import sys

import gguf
import numpy

LENGTH = 48


def read_whole(path):
    reader = gguf.GGUFReader(path)
    for field in reader.fields.values():
        field.contents()
    for tensor in reader.tensors:
        gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return reader


def llama_cpp_without_repacking():
    """Its products of repacked weights (AMX) crash on some virtual machines."""
    import llama_cpp
    made = llama_cpp.llama_cpp.llama_model_default_params

    def parameters():
        defaults = made()
        defaults.use_extra_bufts = False
        return defaults

    llama_cpp.llama_cpp.llama_model_default_params = parameters
    return llama_cpp


def logits(path, adapter=None):
    llama_cpp = llama_cpp_without_repacking()
    vocabulary = int(next(t for t in read_whole(path).tensors if t.name == "token_embd.weight").shape[1])
    if adapter:
        read_whole(adapter)
    # Keys and values in f32, as here; llama.cpp's default is f16.
    llama = llama_cpp.Llama(path, n_ctx=64, n_threads=1, logits_all=True, verbose=False, lora_path=adapter,
                            type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
    for row in range(2):
        tokens = [(row * 7 + column * column * 3 + row * column * 5 + 1) % vocabulary for column in range(LENGTH)]
        llama.reset()
        llama.eval(tokens)
        print("\n".join(f"{value:.9g}" for value in numpy.array(llama.scores[:LENGTH]).flatten().tolist()))


def tokens(path, texts):
    llama_cpp = llama_cpp_without_repacking()
    llama = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    for text in texts:
        print(*llama.tokenize(text.encode(), add_bos=False, special=True))


def main():
    command, *arguments = sys.argv[1:]
    if command == "logits":
        logits(*arguments)
    elif command == "tokens":
        tokens(arguments[0], arguments[1:])
    elif command == "dequantise":
        kind = gguf.GGMLQuantizationType[arguments[0].upper()]
        blocks = numpy.frombuffer(sys.stdin.buffer.read(), "u1").reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
        with numpy.errstate(all="ignore"):
            sys.stdout.buffer.write(gguf.quants.dequantize(blocks, kind).tobytes())
    else:
        values = numpy.frombuffer(sys.stdin.buffer.read(), "<f4").reshape(-1, 32)
        quantised = gguf.quants.quantize(values, gguf.GGMLQuantizationType[arguments[0].upper()])
        sys.stdout.buffer.write(quantised.tobytes())


main()

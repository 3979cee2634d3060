"""Token files of preferences, as fsdp-data tokenize --preference writes them, from ids (lib/data/tokens/token_turns.h)."""
import struct

CONTEXT, OTHER, PREFERRED, START = range(4)


def hash_of(numbers):
    """TokenHash."""
    value = 0x243f6a8885a308d3
    for number in numbers:
        value = (value ^ number) * 0x9e3779b97f4a7c15 & (1 << 64) - 1
        value ^= value >> 32
    return value


def write_preferences(path, documents):
    """documents: (prompt, completion, whether it is preferred), in which prompts have at least one id."""
    ids, parts = [], []
    for prompt, completion, preferred in documents:
        ids += [*prompt, *completion]
        parts += [START] + [CONTEXT] * (len(prompt) - 1) + [PREFERRED if preferred else OTHER] * len(completion)
    path.write_bytes(struct.pack(f"<{len(ids)}H", *ids))
    packed = bytes(sum(part << 2 * place for place, part in enumerate(parts[at:at + 4])) for at in range(0, len(parts), 4))
    head = struct.pack("<4Q", 1, len(ids), hash_of(ids), hash_of(packed))
    path.with_name(path.name + ".turns").write_bytes(b"FSDPTURN" + head + packed)

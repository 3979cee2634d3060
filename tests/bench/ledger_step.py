"""The kernels that a step launches on a GPU in bf16, in their order, with the bytes and FLOPs of each: what lib/ does, told again as
arithmetic, so that a step's time can be derived without a GPU and a trace be read with one (ledger.py).

ledger.py --check compares the list with what programs of the CUDA flavour launch on the stand-in for CUDA. A change of lib/ that adds,
removes or joins kernels is one of CHANGES: step() has the sequence with it and without it, and IN_THE_CODE names those that lib/ has.
BY_A_KEY has those that lib/ has only where a config asks for them: a derived step is without them unless --with names them, and --check
looks at a run with the key too.
"""
import dataclasses
import re

CHANGES = {
    "fast-sigmoid": "SwiGLU, GELU and their gradients divide by __fdividef",
    "joined-totals": "one launch for all totals of a norm's gradients, of 256 parts",
    "rotary-into-dqkv": "one kernel turns dq and dk back and writes them and dv side by side",
    "bias-with-dqkv": "the kernel that writes dq, dk and dv side by side sums them for the bias (without rotary)",
    "dqkv-in-place": "attention's backward writes dq, dk and dv side by side (without rotary)",
    "norm1-two-outputs": "norm1 is a node with the outputs {x, norm1(x)}, whose gradient is one kernel",
    "adamw-copy": "AdamW writes the bf16 copy that gathers take; no casts",
    "squares-beside": "squares of gradients unit by unit on the communication stream, beside backward",
    "head-one-chunk": "the head takes all rows at once where memory allows",
    "head-into-sink": "where the head takes all rows at once, the product adds its weight's gradient to the fp32 gradients",
    "bf16-moments": "AdamW keeps m and v in bf16",
    "residual-in-product": "the products of o and down add what their results are to be added to",
    "product-epilogues": "cublasLt's epilogues compute GELU, its gradient and the gradients of the biases of o, up and down",
    "products-by-trial": "cublasLt's algorithms by trial (assumed: 3 % faster)",
}
PRODUCT_TRIALS = "training.product_trials=true"
BY_A_KEY = {"bf16-moments": 'optimizer.state_dtype="bfloat16"', "residual-in-product": PRODUCT_TRIALS, "product-epilogues": PRODUCT_TRIALS,
            "products-by-trial": PRODUCT_TRIALS}
IN_THE_CODE = ("fast-sigmoid", "joined-totals", "rotary-into-dqkv", "bias-with-dqkv", "norm1-two-outputs", "adamw-copy", "squares-beside",
               "head-one-chunk", "head-into-sink")

# A launch belongs to the first class whose pattern is in its name, mangled (on the stand-in) or not (in a trace).
KERNELS = [(kind, re.compile(pattern)) for kind, pattern in (
    ("copy", r"^copy of |^Memcpy "), ("sort", r"[rR]adix_?[sS]ort|fill_reverse_indices"), ("split of a product", r"splitK|split_k"),
    ("rms norm", r"RmsNormKernel"), ("layer norm", r"LayerNormKernel"), ("norm gradient", r"NormGradKernel"),
    ("total", r"Totals?Kernel"), ("dqkv", r"Join(Rotary|Rows)Kernel"), ("rotary", r"RotaryKernel"),
    ("swiglu", r"SwiGluKernel"), ("swiglu gradient", r"SwiGluGradKernel"), ("gelu", r"BiasGeluKernel"),
    ("gelu gradient", r"BiasGeluGradKernel"), ("bias gradient", r"AddRowsKernel"), ("loss", r"LossKernel"),
    ("count", r"CountKernel"), ("scale", r"ScaleKernel"), ("squares", r"SquaresKernel"), ("sum", r"SumKernel"),
    ("outcome", r"OutcomeKernel"), ("adamw", r"AdamKernel"), ("embedding gradient", r"(Short|Long)RunsKernel"),
    ("cast to bf16", r"bfloat16_copy_kernel"), ("cast", r"direct_copy_kernel"), ("add", r"CUDAFunctor_add"),
    ("fill", r"FillFunctor|^memset of |^Memset "), ("cat", r"CatArrayBatchedCopy"), ("embedding", r"vectorized_gather_kernel|indexSelect|scatter_gather_elementwise"),
    ("positions", r"arange_cuda"), ("reduce", r"reduce_kernel"),
    ("attention", r"cuDNN|cudnn|fmha|flash"), ("product", r"^product |gemm|nvjet|cutlass|xmma"))]
# Beside the step's own stream, so that their place in the order says nothing.
BESIDE = ("cast to bf16", "squares", "sum")
# Kernels or memsets, as libtorch's version has it, so that their number says nothing.
UNCOUNTED = ("fill",)


def kind_of(name):
    """None for a kernel that the ledger does not know."""
    return next((kind for kind, pattern in KERNELS if pattern.search(name)), None)


@dataclasses.dataclass(frozen=True)
class Launch:
    row: str  # of the table: launches of one row do the same
    kind: str
    group: str
    bytes: float = 0.0
    flops: float = 0.0
    instructions: float = 0.0  # of a warp
    sizes: tuple = ()  # of a product: rows, columns, depth
    to: str = ""  # type of a product's result
    hidden: bool = False  # beside other work, which takes longer

    def is_beside(self):
        return self.kind in BESIDE


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """What a GPU can do, by default an H100's as this project has measured it."""
    tb_s: float = 3.0
    tflops: float = 750.0
    warp_instructions_s: float = 132 * 4 * 1.755e9  # one a cycle and scheduler

    def seconds(self, launch):
        return max(launch.bytes / (self.tb_s * 1e12), launch.flops / (self.tflops * 1e12),
                   launch.instructions / self.warp_instructions_s)


@dataclasses.dataclass(frozen=True)
class Expected(Ceilings):
    """What our step reaches: products of a small depth less than the ceiling, attention by measurement (RESULTS.md), and a launch
    of few blocks a few microseconds, however small."""
    small_product_tflops: float = 600.0
    head_tflops: float = 703.0  # where the width is small
    attention: tuple = ((128, 449.0, 370.0), (64, 316.0, 260.0))  # width of a head, forward and backward
    total_us: float = 4.3
    least_us: float = 2.0
    width: int = 0
    head_dim: int = 0
    gain_of_trial: float = 1.0

    def seconds(self, launch):
        if launch.hidden:
            return 0.0
        rate = self.tflops
        if launch.kind == "product" and self.width < 1024:
            rate = self.head_tflops if launch.group == "head" else self.small_product_tflops
        elif launch.kind == "attention":
            forward, backward = next(rates for least, *rates in self.attention if self.head_dim >= least or least == 64)
            rate = forward if launch.row.startswith("F ") else backward
        rate *= self.gain_of_trial if launch.kind == "product" else 1
        least = 0.0 if not launch.kind else 1e-6 * (self.total_us if launch.kind == "total" else self.least_us)
        return max(least, dataclasses.replace(Ceilings(self.tb_s, self.tflops, self.warp_instructions_s), tflops=rate).seconds(launch))


def expected_of(step, ceilings=Ceilings()):
    m = step.model
    return Expected(ceilings.tb_s, ceilings.tflops, ceilings.warp_instructions_s, width=m.hidden, head_dim=m.hidden // m.heads,
                    gain_of_trial=1.03 if step.has("products-by-trial") else 1.0)


def unit_parameters(model):
    """Of a block, and of what is outside of blocks."""
    d, f = model.hidden, model.intermediate
    if model.architecture == "gpt2":
        return 4 * d * d + 2 * d * f + 9 * d + f, model.vocabulary * d + model.sequence * d + 2 * d
    return 2 * d * (d + model.key_width()) + 3 * d * f + 2 * d, model.vocabulary * d * (1 if model.tied else 2) + d


class Step:
    """`launches` of one step of a micro-batch, a rank, blocks and the rest as units, and nothing recomputed."""
    KEPT_INSTRUCTIONS = {"swiglu": (500, 229), "swiglu gradient": (337, 208), "gelu": (279, 143), "gelu gradient": (364, 208)}
    NORM_PARTS = (512, 256)  # as joined-totals are
    CHUNK_BYTES = 512 << 20  # of logits (lib/model/kernels/fused.h)
    SORT_OF_MANY, SORT_OF_FEW = 11, 1  # launches of libtorch's sort of ids
    FEW_IDS = 4096

    def __init__(self, model, sequences, changes=()):
        unknown = set(changes) - set(CHANGES)
        if unknown:
            raise ValueError(f"expected changes of {', '.join(CHANGES)}; found {', '.join(sorted(unknown))}")
        self.model, self.sequences, self.changes, self.launches = model, sequences, frozenset(changes), []
        self.tokens = sequences * model.sequence
        self.activation = 2 * self.tokens * model.hidden  # bytes, as gpu.md's E
        self.inner = 2 * self.tokens * model.intermediate
        self.is_gpt2 = model.architecture == "gpt2"
        self.norm = "layer norm" if self.is_gpt2 else "rms norm"
        self.parts = self.NORM_PARTS["joined-totals" in self.changes]
        self.qkv = model.hidden + 2 * model.key_width()
        self.of_block, self.of_rest = unit_parameters(model)
        self.forward()
        self.head()
        self.backward()
        self.optimizer()

    def has(self, change):
        return change in self.changes

    def add(self, row, kind, group="element-wise", **words):
        self.launches.append(Launch(row, kind, group, **words))

    def small(self, row, kind, times=1):
        for _ in range(times):
            self.add(row, kind, "small")

    def product(self, row, rows, columns, depth, to="16 bits", group="products"):
        written = rows * columns * (2 if to == "16 bits" else 4)
        self.add(row, "product", group, bytes=2.0 * depth * (rows + columns) + written, flops=2.0 * rows * columns * depth,
                 sizes=(rows, columns, depth), to=to)

    def gradients(self, row, columns, depth):
        """Of a layer with `columns` outputs of `depth` inputs. Weights of gpt2 lie the other way round."""
        self.product(f"B {row} dx", self.tokens, depth, columns)
        sizes = (depth, columns) if self.is_gpt2 else (columns, depth)
        self.product(f"B {row} dW", *sizes, self.tokens, to="fp32")

    def in_epilogue(self, row, data):
        """Bytes that a product's epilogue moves, and which its tiles wait for: no launch of their own."""
        self.launches.append(Launch(row, "", "epilogues", bytes=data))

    def activated(self, row, kind, tensors):
        if self.is_gpt2 and self.has("product-epilogues"):
            return self.in_epilogue(f"{row} in the product", self.inner)
        packs = self.tokens * self.model.intermediate / 8 / 32
        self.add(row, kind, bytes=tensors * self.inner,
                 instructions=packs * self.KEPT_INSTRUCTIONS[kind][self.has("fast-sigmoid")])

    def cast(self, row, parameters):
        if not self.has("adamw-copy"):
            self.add(row, "cast to bf16", "casts", bytes=6.0 * parameters)

    def totals(self, row, vectors, width):
        for _ in range(1 if self.has("joined-totals") else vectors):
            self.add(row, "total", bytes=4.0 * self.parts * width * (vectors if self.has("joined-totals") else 1))

    def attention_flops(self):
        m = self.model
        return 2.0 * self.sequences * m.sequence ** 2 * m.hidden  # causal: half of all pairs

    def forward(self):
        m = self.model
        self.small("zeros, ones, positions and counts", "fill")
        self.cast("F casts of shards", self.of_rest)
        if self.is_gpt2:
            self.small("zeros, ones, positions and counts", "positions")
        self.add("F embedding", "embedding", "head", bytes=2 * self.activation)
        if self.is_gpt2:
            self.add("F embedding", "embedding", "head", bytes=4.0 * m.sequence * m.hidden)
            self.add("F embedding", "add", "head", bytes=2 * self.activation)
        for layer in range(m.layers):
            self.cast("F casts of shards", self.of_block)
            self.add("F norm1", self.norm, bytes=2 * self.activation)
            self.product("F qkv", self.tokens, self.qkv, m.hidden)
            if not self.is_gpt2:
                self.add("F rotary", "rotary", bytes=4.0 * self.tokens * (m.hidden + m.key_width()))
            self.add("F attention", "attention", "attention", flops=self.attention_flops())
            self.product("F o", self.tokens, m.hidden, m.hidden)
            if self.has("residual-in-product"):
                self.in_epilogue("F residual adds in products", self.activation)
                self.add("F norm2", self.norm, bytes=2 * self.activation)
            else:
                self.add("F add + norm2", self.norm, bytes=4 * self.activation)
            if self.is_gpt2:
                self.product("F up", self.tokens, m.intermediate, m.hidden)
                self.activated("F GELU", "gelu", 2)
            else:
                self.product("F gate, up", self.tokens, 2 * m.intermediate, m.hidden)
                self.activated("F SwiGLU", "swiglu", 3)
            self.product("F down", self.tokens, m.hidden, m.intermediate)
            if self.has("residual-in-product"):
                self.in_epilogue("F residual adds in products", self.activation)
            else:
                self.add("F residual add", "add", bytes=3 * self.activation)

    def chunks(self):
        if self.has("head-one-chunk"):
            return [self.tokens]
        stride = (self.model.vocabulary + 63) // 64 * 64
        most = max(1, self.CHUNK_BYTES // (2 * stride))
        most = min(most // 256 * 256 or most, self.tokens)
        return [min(most, self.tokens - first) for first in range(0, self.tokens, most)]

    def head(self):
        m, chunks = self.model, self.chunks()
        regular = m.vocabulary // 64 * 64
        parts = [m.vocabulary] if regular in (0, m.vocabulary) else [m.vocabulary - regular, regular]
        into_sink = len(chunks) == 1 and self.has("head-into-sink")
        to = "16 bits" if len(chunks) == 1 and not into_sink else "fp32"

        def gradients_of_weight(rows):
            for part in parts:
                self.product("head: dW", part, m.hidden, rows, to=to, group="head")

        self.add("F last norm", self.norm, bytes=2 * self.activation)
        self.small("zeros, ones, positions and counts", "count")
        for rows in chunks:
            for part in parts:
                self.product("head: logits", rows, part, m.hidden, group="head")
            self.add("head: loss and its gradient", "loss", "head", bytes=4.0 * rows * m.vocabulary)
            for part in parts:
                self.product("head: dx", rows, m.hidden, part, group="head")
            if not into_sink:
                gradients_of_weight(rows)
        weights = m.vocabulary * m.hidden
        if len(chunks) > 1:
            self.add("head: dW to bf16", "cast to bf16", "head", bytes=6.0 * weights)
        self.small("zeros, ones, positions and counts", "sum")
        self.small("zeros, ones, positions and counts", "fill")
        self.small("zeros, ones, positions and counts", "scale", 2)
        if into_sink:
            gradients_of_weight(self.tokens)
        else:
            self.add("head: dW to fp32", "cast", "head", bytes=6.0 * weights)

    def accumulation(self):
        """Bytes of the fp32 sums of the head's dW over chunks."""
        chunks, weights = len(self.chunks()), self.model.vocabulary * self.model.hidden
        return 4.0 * weights * (2 * chunks - 1) if chunks > 1 else 0.0

    def norm_gradient(self, row, tensors):
        width = self.model.hidden
        self.add(row, "norm gradient", bytes=tensors * self.activation + 4.0 * self.parts * width * (2 if self.is_gpt2 else 1))
        self.totals("B totals of norms and biases", 2 if self.is_gpt2 else 1, width)

    def bias_gradient(self, width):
        if self.is_gpt2 and not self.has("product-epilogues"):
            self.add("B bias gradients", "bias gradient", bytes=2.0 * self.tokens * width)
            self.add("B totals of norms and biases", "total", bytes=4.0 * self.parts * width)

    def backward(self):
        m = self.model
        self.norm_gradient("B last norm", 3)
        for layer in reversed(range(m.layers)):
            if layer + 1 < m.layers:  # the last block's parameters are kept
                self.cast("B casts of shards", self.of_block)
            self.gradients("down", m.hidden, m.intermediate)
            self.bias_gradient(m.hidden)
            if self.is_gpt2:
                self.activated("B GELU", "gelu gradient", 3)
                if not self.has("product-epilogues"):
                    self.add("B totals of norms and biases", "total", bytes=4.0 * self.parts * m.intermediate)
                self.gradients("up", m.intermediate, m.hidden)
            else:
                self.activated("B SwiGLU", "swiglu gradient", 5)
                self.gradients("gate, up", 2 * m.intermediate, m.hidden)
            self.norm_gradient("B add + norm2", 4)
            self.gradients("o", m.hidden, m.hidden)
            self.bias_gradient(m.hidden)
            self.add("B attention", "attention", "attention", flops=2.5 * self.attention_flops())
            joins = self.gradient_of_qkv()
            self.gradients("qkv", self.qkv, m.hidden)
            if not joins and self.is_gpt2:
                self.add("B bias gradients", "bias gradient", bytes=2.0 * self.tokens * self.qkv)
                self.add("B totals of norms and biases", "total", bytes=4.0 * self.parts * self.qkv)
            if self.has("norm1-two-outputs"):
                self.norm_gradient("B norm1, with its other gradient", 4)
            else:
                self.norm_gradient("B norm1", 3)
                self.add("B norm1: autograd adds dx", "add", bytes=3 * self.activation)
        self.embedding_gradient()

    def gradient_of_qkv(self):
        """Whether one kernel does all, with the bias's gradient."""
        m, bytes_of_qkv = self.model, 2.0 * self.tokens * self.qkv
        if not self.is_gpt2 and self.has("rotary-into-dqkv"):
            self.add("B dq, dk, dv turned back and joined", "dqkv", bytes=2 * bytes_of_qkv)
            return True
        if self.is_gpt2 and self.has("bias-with-dqkv") and not self.has("dqkv-in-place"):
            self.add("B dq, dk, dv joined, with the bias's sums", "dqkv", bytes=2 * bytes_of_qkv + 4.0 * self.parts * self.qkv)
            self.add("B totals of norms and biases", "total", bytes=4.0 * self.parts * self.qkv)
            return True
        if not (self.is_gpt2 and self.has("dqkv-in-place")):
            self.add("B cat of dq, dk, dv", "cat", bytes=2 * bytes_of_qkv)
        if not self.is_gpt2:
            self.add("B rotary", "rotary", bytes=4.0 * self.tokens * (m.hidden + m.key_width()))
        return False

    def embedding_gradient(self):
        m = self.model
        if self.is_gpt2:
            self.add("B embedding", "reduce", "head", bytes=self.activation)
            self.add("B embedding", "fill", "head", bytes=4.0 * m.sequence * m.hidden)
            self.small("zeros, ones, positions and counts", "positions")
            self.sorted_runs(m.sequence)
        elif not m.tied:
            self.add("B embedding", "fill", "head", bytes=4.0 * m.vocabulary * m.hidden)
        self.sorted_runs(self.tokens)
        self.small("zeros, ones, positions and counts", "cast")
        self.small("zeros, ones, positions and counts", "add")

    def sorted_runs(self, ids):
        self.small("B embedding: sort of ids", "sort", self.SORT_OF_MANY if ids > self.FEW_IDS else self.SORT_OF_FEW)
        for share in (0.5, 0.5):  # of short and of long runs
            self.add("B embedding", "embedding gradient", "head", bytes=share * 2.0 * ids * self.model.hidden * 3)

    def optimizer(self):
        m, parameters = self.model, self.model.layers * self.of_block + self.of_rest
        for unit in range(m.layers + 1):
            self.add("squares of gradients", "squares", "optimizer", bytes=4.0 * (self.of_block if unit else self.of_rest),
                     hidden=self.has("squares-beside"))
            self.add("zeros, ones, positions and counts", "sum", "small", hidden=self.has("squares-beside"))
        self.small("zeros, ones, positions and counts", "reduce")
        self.small("zeros, ones, positions and counts", "cat")
        self.small("zeros, ones, positions and counts", "outcome")
        each = (20.0 if self.has("bf16-moments") else 28.0) + (2.0 if self.has("adamw-copy") else 0.0)
        # Parts of a table: units, or single tensors, since the places in a tensor decide how its moments are rounded.
        tables = -(-self.tensors() // 34) if self.has("bf16-moments") else -(-(m.layers + 1) // 56)
        for _ in range(tables):
            self.add("AdamW", "adamw", "optimizer", bytes=each * parameters / tables)
        if self.accumulation():
            self.in_epilogue("head: dW summed over chunks", self.accumulation())

    def tensors(self):
        """Parameters of the model."""
        of_block, of_rest = (12, 4) if self.is_gpt2 else (9, 2 if self.model.tied else 3)
        return self.model.layers * of_block + of_rest

    def launched(self):
        """Those that are launches of their own."""
        return [launch for launch in self.launches if launch.kind]

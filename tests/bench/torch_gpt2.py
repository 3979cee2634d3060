"""GPT-2 for torch_peer.py, with Hugging Face's names and their [in, out] matrices."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Conv1D(nn.Module):
    """x @ weight + bias."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


class Attention(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads = o.heads
        self.c_attn, self.c_proj = Conv1D(o.dim, 3 * o.dim), Conv1D(o.dim, o.dim)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = [part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.c_attn(x).split(width, -1)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(o.dim, o.ffn), Conv1D(o.ffn, o.dim)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(o.dim, o.norm_eps), Attention(o)
        self.ln_2, self.mlp = nn.LayerNorm(o.dim, o.norm_eps), FeedForward(o)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Inner(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(o.vocab, o.dim), nn.Embedding(o.seq, o.dim)
        self.h = nn.ModuleList(Block(o) for _ in range(o.layers))
        self.ln_f = nn.LayerNorm(o.dim, o.norm_eps)
        for embedding in (self.wte, self.wpe):
            nn.init.normal_(embedding.weight, std=0.02)


class Gpt2(nn.Module):
    """`o`: torch_peer.py's arguments."""

    def __init__(self, o):
        super().__init__()
        self.transformer = Inner(o)
        self.lm_head = nn.Linear(o.dim, o.vocab, bias=False)
        nn.init.normal_(self.lm_head.weight, std=0.02)
        if o.tie:
            self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids):
        inner = self.transformer
        x = inner.wte(ids) + inner.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in inner.h:
            x = block(x)
        return self.lm_head(inner.ln_f(x))

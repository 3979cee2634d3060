"""The CPU half of libtorch, which the programs of fsdp-toolkit load. There is nothing to import."""

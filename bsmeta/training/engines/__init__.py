"""The engines: plain torch, FSDP2 and DeepSpeed, behind one interface and one layout on disk."""

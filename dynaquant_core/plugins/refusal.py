"""What the system refuses while a framework writes its own files."""

from __future__ import annotations

__all__ = ["is_refusal"]

#: What torch.save says, in a RuntimeError, where it cannot write: a place in its source or (2.7) a sentence.
TORCH_SAYS = ("inline_container", "cannot be opened")


def is_refusal(error: Exception) -> bool:
    """Whether the system refused to write; other errors are the framework's or the user's.

    Example:
        >>> is_refusal(PermissionError()), is_refusal(RuntimeError("CUDA out of memory"))
        (True, False)
    """
    return isinstance(error, OSError) or any(words in str(error) for words in TORCH_SAYS)

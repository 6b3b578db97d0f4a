"""What can be said of NCCL without a GPU."""

from __future__ import annotations

from corpus.flags import Scope
from fuzz.backends import load
from fuzz.campaign import Budget
from fuzz.session import Session, space


def test_no_variable_is_drawn_with_a_case() -> None:
    """NCCL keeps what it has read: another value needs another process."""
    nccl = load("nccl")
    assert {flag.scope for flag in nccl.flags} == {Scope.PROCESS}
    assert all(flag.environment for flag in nccl.flags)


def test_a_variable_that_is_set_stands_in_every_case() -> None:
    session = Session("nccl", (2,), Budget(examples=1), flags=(("NCCL_PROTO", "LL"),))
    drawn = space(session, load("nccl"))
    assert (drawn.flags, drawn.set_flags) == ((), (("NCCL_PROTO", "LL"),))

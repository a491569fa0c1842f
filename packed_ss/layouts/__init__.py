"""Which rows a call has and who sees whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..models.config import ModelConfig
    from ..schedules import Branched
    from .block_layout import BlockLayout
    from .ordered_layout import Order, OrderedLayout


def layout_for(
    config: ModelConfig,
    schedule: str | Branched,
    block_size: int | None,
    two_call_start: bool,
    window: int | None,
    order: Order | None,
) -> BlockLayout | OrderedLayout:
    """The layout of a model, under a schedule.  Raises ValueError for an argument of the other one."""
    from .block_layout import BlockLayout
    from .ordered_layout import OrderedLayout

    kinds = {"block": "of the block layout, such as Nemotron-Labs-Diffusion", "ordered": "an ordered one, such as SetDLM"}
    foreign: dict[str, dict[str, Any]] = {
        "block": {"window": window, "order": order},
        "ordered": {"block_size": block_size, "two_call_start": two_call_start or None},
    }
    for name, value in foreign[config.layout].items():
        if value is not None:
            instead = "block_size" if config.layout == "block" else "window and order"
            raise ValueError(f"{name} is {value!r}, but the model is {kinds[config.layout]}, which takes {instead}")
    if config.layout == "block":
        return BlockLayout(config, schedule, block_size, two_call_start)
    return OrderedLayout(config, schedule, window, "left_to_right" if order is None else order)

"""Sections of experiments on pictures of full size: a deep residual network, and a folder of pictures."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dynaquant_core.experiments.config.section import Count, Section

__all__ = ["BottleneckModel", "FolderData"]


class BottleneckModel(Section):
    """``model: {name: bottleneck}``: He et al.'s deep networks; the defaults are ResNet-152.

    Args:
        widths: of the 3x3 convolutions of each stage, whose outputs are four times as wide.
        depths: blocks of each stage (3, 4, 6, 3 is ResNet-50).
    """

    name: Literal["bottleneck"]
    widths: list[Count] = Field(default=[64, 128, 256, 512], min_length=1)
    depths: list[Count] = Field(default=[3, 8, 36, 3], min_length=1)

    @model_validator(mode="after")
    def _a_depth_for_each_width(self) -> BottleneckModel:
        if len(self.depths) != len(self.widths):
            raise ValueError(f"{len(self.depths)} depths for {len(self.widths)} widths; give one for each")
        return self


class FolderData(Section):
    """``data: {name: image_folder}``: ``train/CLASS/*`` and ``val/CLASS/*``, as ImageNet is unpacked.

    Args:
        source: the folder, tried as given, then under the data root.
        side: pixels on a side of what the model sees.
        batch: images a training step.
        augment: random crops of 8% to 100% of an image, and flips; otherwise the centre, as in evaluation.
        search_images, heldout_images: sizes of the two fixed evaluation sets, drawn from ``val``.
    """

    name: Literal["image_folder"]
    source: str
    side: Count = 224
    batch: Count = 256
    augment: bool = True
    search_images: Count = 1000
    heldout_images: Count = 2000

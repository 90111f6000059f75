"""The methods that a table can compare, by name, with where each comes from and at what size it runs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from heathaze.evaluate.baselines import mwem as mwem_module
from heathaze.evaluate.baselines import privbayes as privbayes_module
from heathaze.evaluate.baselines.adaptive_grid import ag
from heathaze.evaluate.baselines.ahp import ahp
from heathaze.evaluate.baselines.dawa import dawa
from heathaze.evaluate.baselines.dpcube import dpcube
from heathaze.evaluate.baselines.hierarchy import hb, hb3d
from heathaze.evaluate.baselines.pgm import pgm
from heathaze.evaluate.baselines.privtree import privtree
from heathaze.evaluate.baselines.quadtree import quadtree
from heathaze.evaluate.baselines.simple import clipped, identity, zero
from heathaze.evaluate.baselines.smoothers import block, block_oracle, gaussian, gaussian_oracle
from heathaze.evaluate.baselines.stholes import stholes
from heathaze.evaluate.baselines.uniform_grid import ug
from heathaze.evaluate.meter import Meter, Method
from heathaze.learn.shrink import shrink as shrink_denoiser


@dataclass(frozen=True)
class MethodInfo:
    """A method and what a table says of it."""

    method: Method
    reference: str
    """Authors and year of what it implements."""
    is_oracle: bool = False
    """Whether it looks at the truth past the meter: a bound, never a competitor."""
    runs_at: str = ""
    """The size that it works at where that is coarser than the cells; empty for full size."""


def shrink(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """heathaze's classical denoiser on the noisy tensor; all of epsilon goes into the one measurement of every cell."""
    noisy = meter.laplace(counts, meter.epsilon)
    return shrink_denoiser(noisy, [], Fraction(meter.unit) / meter.epsilon).values


INFO: dict[str, MethodInfo] = {
    "zero": MethodInfo(zero, "no look at the data"),
    "identity": MethodInfo(identity, "Dwork et al. 2006"),
    "clipped": MethodInfo(clipped, "Dwork et al. 2006, negatives cut"),
    "block": MethodInfo(block, "block means, side by Mallows 1973"),
    "block_oracle": MethodInfo(block_oracle, "block means, side by the truth", is_oracle=True),
    "gaussian": MethodInfo(gaussian, "Gaussian filter, width by Stein 1981"),
    "gaussian_oracle": MethodInfo(gaussian_oracle, "Gaussian filter, width by the truth", is_oracle=True),
    "ug": MethodInfo(ug, "Qardaji, Yang, Li 2013 (ICDE)"),
    "ag": MethodInfo(ag, "Qardaji, Yang, Li 2013 (ICDE)"),
    "hb": MethodInfo(hb, "Qardaji, Yang, Li 2013 (PVLDB)"),
    "hb3d": MethodInfo(hb3d, "Qardaji, Yang, Li 2013 (PVLDB)"),
    "quadtree": MethodInfo(quadtree, "Cormode et al. 2012"),
    "dawa": MethodInfo(dawa, "Li, Hay, Miklau 2014"),
    "ahp": MethodInfo(ahp, "Zhang, Chen, Xu, Meng, Xie 2014"),
    "mwem": MethodInfo(mwem_module.mwem, "Hardt, Ligett, McSherry 2012", runs_at=mwem_module.RUNS_AT),
    "privbayes": MethodInfo(privbayes_module.privbayes, "Zhang et al. 2014", runs_at=privbayes_module.RUNS_AT),
    "privtree": MethodInfo(privtree, "Zhang, Xiao, Xie 2016"),
    "dpcube": MethodInfo(dpcube, "Xiao, Xiong, Yuan 2010"),
    "stholes": MethodInfo(stholes, "Bruno et al. 2001; Zeighami et al. 2022"),
    "pgm": MethodInfo(pgm, "McKenna, Sheldon, Miklau 2019, simplified"),
    "shrink": MethodInfo(shrink, "Efron, Morris 1973; heathaze.learn.shrink"),
}

METHODS: dict[str, Method] = {name: info.method for name, info in INFO.items()}

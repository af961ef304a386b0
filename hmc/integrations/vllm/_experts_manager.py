"""The manager of vLLM's all-to-all: what vLLM calls for each layer of experts."""

from __future__ import annotations

from typing import Any

import torch
import vllm
from vllm.config import get_current_vllm_config
from vllm.distributed import get_ep_group
from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager

from hmc.errors import UnsupportedError
from hmc.integrations.vllm._expert_group import ExpertGroup
from hmc.integrations.vllm._expert_places import ExpertPlaces
from hmc.integrations.vllm._experts_config import ExpertsConfig
from hmc.integrations.vllm.pipeline import SUPPORTED

__all__ = ["HMCAll2AllManager"]


class HMCAll2AllManager(AgRsAll2AllManager):  # type: ignore[misc]  # vLLM may be missing
    """Sends each token to the ranks of its experts, and sums their results.

    Where vLLM gives the experts of each token (:meth:`dispatch`) and nothing else travels, a rank gets the rows that its experts
    take. Where vLLM routes behind the exchange, sends scales along, or splits experts among ranks, each rank gets all rows, as
    with vLLM's own manager. Methods are vLLM's; every rank makes the same calls in the same order, one at a time.

    Raises UnsupportedError (another release of vLLM; a device whose kernels vLLM captures in graphs; groups without torch's store).
    Calls raise PeerLostError, HmcTimeoutError: the engine ends.
    """

    def __init__(self, cpu_group: Any, tcp_store_group: Any = None) -> None:
        super().__init__(cpu_group, tcp_store_group)
        version = str(vllm.__version__)
        if version.split("+")[0] not in SUPPORTED:
            raise UnsupportedError(
                f"additional_config asks for all2all by HMC in vLLM {version}; HMC supports that with {', '.join(SUPPORTED)}"
            )
        if tcp_store_group is not None:
            raise UnsupportedError("all2all by HMC: elastic groups of experts are not supported: leave out enable_elastic_ep")
        self._config = ExpertsConfig.of(get_current_vllm_config())
        self._groups: dict[str, ExpertGroup] = {}
        self._group: ExpertGroup | None = None  # whose dispatch is without its combine

    def dispatch_router_logits(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        is_sequence_parallel: bool = False,
        extra_tensors: list[torch.Tensor] | None = None,
    ) -> Any:
        """All ranks' rows and logits, and what comes with them."""
        rows = self._gather([hidden_states, router_logits, *(extra_tensors or [])], is_sequence_parallel)
        return (rows[0], rows[1]) if extra_tensors is None else (rows[0], rows[1], rows[2:])

    def dispatch(
        self,
        hidden_states: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        is_sequence_parallel: bool = False,
        extra_tensors: list[torch.Tensor] | None = None,
    ) -> Any:
        """The rows that this rank's experts take, or all; with the weights and numbers of their experts.

        The weight of a row's other experts, which other ranks have, is 0.
        """
        if extra_tensors is not None or not self._config.sends(hidden_states):
            rows, weights, ids, *more = self._gather(
                [hidden_states, topk_weights, topk_ids, *(extra_tensors or [])], is_sequence_parallel
            )
            assert self._group is not None
            found = (rows, *self._group.of_this_rank(weights, ids))
            return found if extra_tensors is None else (*found, more)
        return self._begin(is_sequence_parallel).send(hidden_states, topk_weights, topk_ids)

    def combine(self, hidden_states: torch.Tensor, is_sequence_parallel: bool = False) -> torch.Tensor:
        """For each token of this rank the sum of what the ranks have computed for it."""
        group, self._group = self._group, None
        if group is None:
            raise RuntimeError("combine without a dispatch")
        return group.combine(hidden_states)

    def combine_into_output(
        self, hidden_states: torch.Tensor, output: torch.Tensor, is_sequence_parallel: bool = False
    ) -> torch.Tensor:
        """As combine."""
        output.copy_(self.combine(hidden_states, is_sequence_parallel))
        return output

    def allocate_combine_input(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, is_sequence_parallel: bool = False
    ) -> torch.Tensor | None:
        """Memory that combine does not copy; None: vLLM allocates."""
        return None if self._group is None else self._group.results(shape, dtype, device)

    def destroy(self) -> None:
        """Leaves the groups. Not collective."""
        groups, self._groups = self._groups, {}
        for group in groups.values():
            group.close()

    def _gather(self, tensors: list[torch.Tensor], is_sequence_parallel: bool) -> list[torch.Tensor]:
        group = self._begin(is_sequence_parallel)
        return group.gather(tensors, self._get_sizes(len(tensors[0]), self._get_comm_group(is_sequence_parallel)))

    def _begin(self, is_sequence_parallel: bool) -> ExpertGroup:
        if self._group is not None:
            raise RuntimeError("dispatch before the combine of an earlier one")
        of_vllm = self._get_comm_group(is_sequence_parallel)
        group = self._groups.get(of_vllm.unique_name)
        if group is None:
            places = ExpertPlaces(self._config.experts, get_ep_group().ranks, of_vllm.ranks, of_vllm.rank_in_group)
            group = self._groups[of_vllm.unique_name] = ExpertGroup(of_vllm, places, self._config)
        self._group = group
        return group

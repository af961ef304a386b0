"""A worker's side of the connector: its cache as pools, which lend and fetch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import torch
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.distributed.utils import get_pp_indices
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.utils import extract_layer_index
from vllm.utils.torch_utils import is_quantized_kv_cache

import hmc
from hmc import kv
from hmc.errors import HmcError, UnsupportedError
from hmc.integrations.vllm._caches import Shape, describe, element_type, probe
from hmc.integrations.vllm._fetcher import Fetcher
from hmc.integrations.vllm._lender import Lender
from hmc.integrations.vllm._log import logger
from hmc.integrations.vllm._metadata import HMCConnectorMetadata
from hmc.integrations.vllm._options import Options
from hmc.integrations.vllm._params import Remote
from hmc.integrations.vllm._ranks import Grid, Source, heads_of
from hmc.integrations.vllm._receiver import Receiver
from hmc.integrations.vllm._sender import Sender
from hmc.integrations.vllm._tally import Tally

__all__ = ["Worker"]


class Worker:
    """The cache of one worker. ``start`` when it is allocated; the engine's thread calls."""

    def __init__(self, config: VllmConfig, options: Options) -> None:
        self._config = config
        self._options = options
        self._ctx: hmc.Context | None = None
        self._pools: list[kv.Pool] = []
        self.tally = Tally()
        # Prefill and decode side: in mode pull a Lender and a Fetcher, in mode push a Sender and a Receiver.
        self._lender: Lender | Sender | None = None
        self._fetcher: Fetcher | Receiver | None = None

    def start(self, caches: dict[str, torch.Tensor]) -> None:
        """Registers the layers' caches, after their layout was checked. Raises UnsupportedError."""
        names = sorted(caches, key=extract_layer_index)
        layers = get_layers_from_vllm_config(self._config, Attention, names)
        if set(layers) != set(names):
            raise UnsupportedError(
                f"layers {sorted(set(names) - set(layers))} are no attention layers; a cache of K and V is supported"
            )
        shape = self._shape(names, layers)
        tensors = [caches[name] for name in names]
        first = layers[names[0]]
        backend = first.get_attn_backend().get_name()
        dtype = element_type(tensors[0], self._config.cache_config.cache_dtype)
        described = describe(backend, tensors, shape, dtype)
        sample = torch.empty((2, *tensors[0].shape[1:]), dtype=tensors[0].dtype)

        def write(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
            first.impl.do_kv_cache_update(first, key, value, cache, slots)

        one = dataclasses.replace(shape, scales=shape.scales[:2])
        probe(lambda cache: describe(backend, [cache], one, dtype), sample, write, one, self._config.model_config.dtype)
        self._ctx = hmc.Context(listen=self._options.address(get_pp_group().rank_in_group, get_tp_group().rank_in_group))
        push = self._options.mode == "push"
        access = "rw" if push and self._options.fetches else "r"
        self._pools = [kv.Pool(self._ctx, cache.arrays, cache.layout, access=access) for cache in described]
        self._serve(self._ctx, push)
        layouts = ", ".join(str(cache.layout) for cache in described)
        logger.info("HMC: mode %s, %s, at %s", self._options.mode, layouts, self._ctx.addresses)

    def _serve(self, ctx: hmc.Context, push: bool) -> None:
        options, model = self._options, _fingerprint(self._config)
        if options.lends and push:
            credits = options.push_credits
            self._lender = Sender(ctx, self._pools, options.engine, model, options.lease_seconds, credits, self.tally)
        elif options.lends:
            self._lender = Lender(ctx, self._pools, options.engine, model, options.lease_seconds, self.tally)
        if options.fetches:
            kind = Receiver if push else Fetcher
            self._fetcher = kind(
                ctx,
                self._pools,
                self._sources,
                model,
                timeout=options.load_timeout,
                threads=options.load_threads,
                renew=options.lease_seconds / 6,
                tally=self.tally,
                connected=self._lender.serve if self._lender is not None else lambda peer: None,
            )

    def begin(self, news: HMCConnectorMetadata) -> None:
        """A step begins (push). Returns when nothing reads the blocks of preempted requests."""
        if isinstance(self._lender, Sender):
            self._lender.begin(news.chunks, news.preempted)

    def saved(self, layer_name: str) -> None:
        """The step has computed a layer (push). Returns at once."""
        if isinstance(self._lender, Sender):
            self._lender.saved(extract_layer_index(layer_name))

    def end(self) -> None:
        """The step has ended (push). Returns at once."""
        if isinstance(self._lender, Sender):
            self._lender.end()

    def step(self, news: HMCConnectorMetadata) -> None:
        """Starts what the scheduler's side asks for. Returns at once."""
        if isinstance(self._lender, Sender):
            for kept in news.keep:
                self._lender.keep(kept.request, kept.transfer)
            for dropped in news.dropped:
                self._lender.drop(dropped)
        elif self._lender is not None:
            for kept in news.keep:
                self._lender.keep(kept.request, kept.blocks, kept.tokens, kept.prompt)
        if self._fetcher is None:
            return
        for fetch in news.fetch:
            self._fetcher.fetch(fetch)
        for request in news.cancel:
            self._fetcher.cancel(request)
        for remote in news.release:
            self._fetcher.release(remote)
        self._fetcher.renew(news.renew)

    def finished(self) -> tuple[set[str], set[str], set[int]]:
        """Requests whose blocks are free, requests that were fetched, and the blocks of those that failed."""
        sent = self._lender.finished() if self._lender is not None else set()
        fetched, failed = self._fetcher.finished() if self._fetcher is not None else (set(), set())
        return sent, fetched, failed

    def close(self) -> None:
        """Ends transfers and leases. Idempotent."""
        if self._fetcher is not None:
            self._fetcher.close()
        if self._lender is not None:
            self._lender.close()
        for one in (*self._pools, self._ctx):
            try:
                if one is not None:
                    one.close()
            except HmcError as error:  # the process ends anyway
                logger.warning("HMC: %s", error)

    def _shape(self, names: list[str], layers: dict[str, Attention]) -> Shape:
        numbers = [extract_layer_index(name) for name in names]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise UnsupportedError(f"the layers with a KV cache are numbered {numbers}; a range without gaps is supported")
        model, parallel = self._config.model_config, self._config.parallel_config
        head, heads = heads_of(model.get_total_num_kv_heads(), parallel.tensor_parallel_size, get_tp_group().rank_in_group)
        scales: list[float] = []
        if is_quantized_kv_cache(self._config.cache_config.cache_dtype):
            for name in names:
                scales += [layers[name]._k_scale_float, layers[name]._v_scale_float]
        dims = layers[names[0]].head_size
        return Shape(numbers[0], head, heads, dims, self._config.cache_config.block_size, tuple(scales))

    def _sources(self, remote: Remote) -> list[Source]:
        model, parallel = self._config.model_config, self._config.parallel_config
        grid = Grid(
            model.get_total_num_kv_heads(),
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            get_pp_group().rank_in_group,
            get_tp_group().rank_in_group,
        )
        layers = model.get_total_num_hidden_layers()
        try:
            return grid.sources(remote, lambda rank, size: get_pp_indices(layers, rank, size))
        except ValueError as error:
            raise UnsupportedError(f"the layers of a prefill engine of pp_size {remote.pp_size} are not known: {error}") from error


def _fingerprint(config: VllmConfig) -> str:
    """Of what the numbers in a cache depend on, besides the weights."""
    model: dict[str, Any] = config.model_config.hf_text_config.to_dict()
    for name in ("_name_or_path", "dtype", "torch_dtype", "transformers_version"):
        model.pop(name, None)
    text = json.dumps(model, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]

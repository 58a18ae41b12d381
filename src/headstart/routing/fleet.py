"""Which replicas there are, what they serve, and which may be used now."""

from collections.abc import Sequence
from typing import Final

from headstart.errors import NotFound
from headstart.routing.replica import Replica, Standing

_MAX_CACHED_MODELS: Final = 256


class Fleet:
    """All replicas of one gateway.

    Answers are kept until a replica's models or standing change, and are then the same tuple for
    every request, so that policies can keep what they derive from it.

    Args:
        replicas: in the order of the configuration; names are unique.
    """

    __slots__ = ("_candidates", "_replicas")

    def __init__(self, replicas: Sequence[Replica]) -> None:
        assert len({replica.name for replica in replicas}) == len(replicas)
        self._replicas = tuple(replicas)
        self._candidates: dict[str, tuple[Replica, ...]] = {}

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Every replica, usable or not."""
        return self._replicas

    def models(self) -> list[str]:
        """Return the names of all models that some replica serves, sorted."""
        return sorted(set().union(*(replica.models for replica in self._replicas)))

    def candidates(self, model: str) -> tuple[Replica, ...]:
        """Return the replicas that may take a request for `model` now; possibly none.

        A replica whose models are not known yet may serve any. An empty `model` fits all. Where
        no replica is usable or to be tried, those of the last resort are returned.

        Raises:
            NotFound: the models of all replicas are known, and none serves it.
        """
        found = self._candidates.get(model)
        if found is None:
            found = self._find(model)
            if len(self._candidates) < _MAX_CACHED_MODELS:
                self._candidates[model] = found
        return found

    def set_standing(self, replica: Replica, standing: Standing) -> None:
        """Let `replica` be chosen, or not."""
        if replica.standing is not standing:
            replica.standing = standing
            replica.is_available = standing is Standing.USABLE
            self._candidates.clear()

    def set_models(self, replica: Replica, models: frozenset[str]) -> None:
        """Note what `replica` serves."""
        if replica.models != models:
            replica.models = models
            self._candidates.clear()

    def _find(self, model: str) -> tuple[Replica, ...]:
        serving = [
            replica
            for replica in self._replicas
            if not model or not replica.models or model in replica.models
        ]
        if not serving:
            served = ", ".join(self.models())
            raise NotFound(
                f"No engine serves the model {model[:200]!r}. Served: {served}.", param="model"
            )
        first = (Standing.USABLE, Standing.TRIAL)
        return tuple(replica for replica in serving if replica.standing in first) or tuple(
            replica for replica in serving if replica.standing is Standing.LAST_RESORT
        )

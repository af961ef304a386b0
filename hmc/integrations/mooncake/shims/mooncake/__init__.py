"""The name ``mooncake`` for HMC's drop-in, which has ``mooncake.engine`` only."""

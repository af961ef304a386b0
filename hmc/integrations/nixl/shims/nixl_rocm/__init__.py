"""The name ``nixl_rocm`` for HMC's drop-in."""

from hmc.integrations.nixl._install import as_package

as_package(__name__)

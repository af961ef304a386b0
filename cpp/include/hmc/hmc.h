// Everything. See docs/ for tutorials; each header documents its own contracts.
#pragma once

#include "hmc/buffer.h"
#include "hmc/communicator.h"
#include "hmc/completion_queue.h"
#include "hmc/context.h"
#include "hmc/deadline.h"
#include "hmc/device.h"
#include "hmc/interrupt.h"
#include "hmc/memory.h"
#include "hmc/native.h"
#include "hmc/path.h"
#include "hmc/peer.h"
#include "hmc/reduce.h"
#include "hmc/status.h"
#include "hmc/topology.h"
#include "hmc/version.h"
#include "hmc/work.h"

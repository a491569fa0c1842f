#include "../../csrc/testing/exports.h"
#include "examples.h"

PACKED_SS_EXPORT_RUNTIME
PACKED_SS_EXPORT(argmax, packed_ss::examples::launch_argmax)
PACKED_SS_EXPORT(meet, packed_ss::examples::launch_meet)
PACKED_SS_EXPORT(warp, packed_ss::examples::launch_warp)

// Types of the driver's functions, for programs that ask the runtime for them.
#pragma once
#include "cuda.h"
typedef decltype(&cuTensorMapEncodeTiled) PFN_cuTensorMapEncodeTiled;
typedef PFN_cuTensorMapEncodeTiled PFN_cuTensorMapEncodeTiled_v12000;

// The driver API is not emulated; many programs include its header and use the runtime's names alone.
#pragma once
#include "cuda_runtime.h"

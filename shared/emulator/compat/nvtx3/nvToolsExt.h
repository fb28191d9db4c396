// Marks for a profiler, which nobody reads here.
#pragma once
inline int nvtxRangePushA(const char*) { return 0; }
inline int nvtxRangePop() { return 0; }
inline void nvtxMarkA(const char*) {}
#define nvtxRangePush nvtxRangePushA
#define nvtxMark nvtxMarkA

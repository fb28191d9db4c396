// Graphs. Nodes run in the order in which they were added, which keeps every dependency that was there by then.
// A capture notes what streams are asked for, whichever stream it is.
#pragma once
#include <memory>
#include <tuple>

#include "launch.h"

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone,
    cudaStreamCaptureStatusActive,
    cudaStreamCaptureStatusInvalidated
};
enum cudaGraphExecUpdateResult { cudaGraphExecUpdateSuccess, cudaGraphExecUpdateError };
enum cudaGraphInstantiateFlags {
    cudaGraphInstantiateFlagAutoFreeOnLaunch = 1,
    cudaGraphInstantiateFlagUpload = 2,
    cudaGraphInstantiateFlagDeviceLaunch = 4,
    cudaGraphInstantiateFlagUseNodePriority = 8
};

namespace emu {
// A kernel of any type, where CUDA has a void*.
struct AnyKernel {
    std::function<void()> (*bind)(const void* f, void** arguments);
    const void* f;
    AnyKernel() = default;
    constexpr AnyKernel(int) : bind(nullptr), f(nullptr) {}
    constexpr AnyKernel(std::nullptr_t) : bind(nullptr), f(nullptr) {}
    template <class... A> AnyKernel(void (*kernel)(A...)) : bind(of<A...>), f((const void*)kernel) {}

  private:
    template <class... A> static std::function<void()> of(const void* f, void** arguments) {
        return bound<A...>(f, arguments, std::index_sequence_for<A...>{});
    }
    template <class... A, size_t... I>
    static std::function<void()> bound(const void* f, void** arguments, std::index_sequence<I...>) {
        std::tuple<std::decay_t<A>...> own(
            *static_cast<std::remove_reference_t<A>*>(arguments[I])...);
        return [f, own] { std::apply((void (*)(A...))f, own); };
    }
};
}  // namespace emu
struct cudaKernelNodeParams {
    emu::AnyKernel func;
    // As the names are rewritten: those of CUDA are macros.
    dim3 host_gridDim, host_blockDim;
    unsigned sharedMemBytes;
    void **kernelParams, **extra;
};
struct cudaMemsetParams {
    void* dst;
    size_t pitch;
    unsigned value, elementSize;
    size_t width, height;
};
struct cudaHostNodeParams {
    cudaHostFn_t fn;
    void* userData;
};
struct CUgraphNode_st {
    std::function<void()> run;
};
struct CUgraph_st {
    std::vector<std::shared_ptr<CUgraphNode_st>> nodes;
};
// By the node that each was made of.
struct CUgraphExec_st {
    std::vector<std::pair<CUgraphNode_st*, std::function<void()>>> nodes;
};
typedef CUgraphNode_st* cudaGraphNode_t;
typedef CUgraph_st* cudaGraph_t;
typedef CUgraphExec_st* cudaGraphExec_t;

namespace emu {
inline cudaError_t add_node(cudaGraphNode_t* to, cudaGraph_t graph, std::function<void()> run) {
    EMU_API;
    graph->nodes.push_back(std::make_shared<CUgraphNode_st>(CUgraphNode_st{std::move(run)}));
    if (to) *to = graph->nodes.back().get();
    return cudaSuccess;
}
inline std::function<void()> kernel_node(const cudaKernelNodeParams& p) {
    if (!p.func.bind) return nullptr;
    auto call = p.func.bind(p.func.f, p.kernelParams);
    dim3 grid = p.host_gridDim, block = p.host_blockDim;
    size_t shared = p.sharedMemBytes;
    return [=] {
        configure(grid, block, shared);
        call();
    };
}
}  // namespace emu

inline cudaError_t cudaGraphCreate(cudaGraph_t* to, unsigned) {
    EMU_API;
    *to = new CUgraph_st;
    return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { delete graph; return cudaSuccess; }
inline cudaError_t cudaGraphClone(cudaGraph_t* to, cudaGraph_t graph) {
    EMU_API;
    *to = new CUgraph_st(*graph);
    return cudaSuccess;
}
inline cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    EMU_API;
    for (size_t i = 0; nodes && i < *count && i < graph->nodes.size(); ++i)
        nodes[i] = graph->nodes[i].get();
    *count = graph->nodes.size();
    return cudaSuccess;
}
inline cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* to, cudaGraph_t graph,
                                          const cudaGraphNode_t*, size_t,
                                          const cudaKernelNodeParams* p) {
    auto run = emu::kernel_node(*p);
    return run ? emu::add_node(to, graph, run) : emu::keep(cudaErrorInvalidDeviceFunction);
}
inline cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* to, cudaGraph_t graph,
                                          const cudaGraphNode_t*, size_t,
                                          const cudaMemcpy3DParms* p) {
    cudaMemcpy3DParms own = *p;
    return emu::add_node(to, graph, [own] { cudaMemcpy3D(&own); });
}
inline cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* to, cudaGraph_t graph,
                                            const cudaGraphNode_t*, size_t, void* dst,
                                            const void* src, size_t bytes, cudaMemcpyKind kind) {
    return emu::add_node(to, graph, [=] { emu::copy(dst, src, bytes, kind); });
}
inline cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* to, cudaGraph_t graph,
                                          const cudaGraphNode_t*, size_t,
                                          const cudaMemsetParams* p) {
    cudaMemsetParams own = *p;
    return emu::add_node(to, graph, [own] {
        std::vector<char> row(own.width * own.elementSize);
        for (size_t i = 0; i < row.size(); ++i) row[i] = char(own.value >> 8 * (i % own.elementSize));
        for (size_t y = 0; y < own.height; ++y)
            emu::copy((char*)own.dst + y * own.pitch, row.data(), row.size(), cudaMemcpyHostToDevice);
    });
}
inline cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* to, cudaGraph_t graph,
                                        const cudaGraphNode_t*, size_t,
                                        const cudaHostNodeParams* p) {
    cudaHostNodeParams own = *p;
    return emu::add_node(to, graph, [own] { own.fn(own.userData); });
}
inline cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* to, cudaGraph_t graph,
                                         const cudaGraphNode_t*, size_t) {
    return emu::add_node(to, graph, [] {});
}
template <class A> inline cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* to, cudaGraph_t graph, A) {
    EMU_API;
    *to = new CUgraphExec_st;
    for (const auto& node : graph->nodes) (*to)->nodes.emplace_back(node.get(), node->run);
    return cudaSuccess;
}
template <class... A>
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* to, cudaGraph_t graph, A...) {
    return cudaGraphInstantiateWithFlags(to, graph, 0);
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { delete exec; return cudaSuccess; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
    EMU_API;
    for (const auto& [node, run] : exec->nodes) run();
    return emu::sticky_error;
}
EMU_NOTHING(cudaGraphUpload)
inline cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                    const cudaKernelNodeParams* p) {
    EMU_API;
    for (auto& [own, run] : exec->nodes)
        if (own == node) {
            run = emu::kernel_node(*p);
            return run ? cudaSuccess : emu::keep(cudaErrorInvalidDeviceFunction);
        }
    return emu::keep(cudaErrorInvalidValue);
}
// The new nodes take the place of the old ones, one by one.
inline cudaError_t emu_update(cudaGraphExec_t exec, cudaGraph_t graph) {
    EMU_API;
    if (exec->nodes.size() != graph->nodes.size()) return emu::keep(cudaErrorInvalidValue);
    for (size_t i = 0; i < graph->nodes.size(); ++i) exec->nodes[i].second = graph->nodes[i]->run;
    return cudaSuccess;
}
inline cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphNode_t* node,
                                       cudaGraphExecUpdateResult* result) {
    if (node) *node = nullptr;
    cudaError_t error = emu_update(exec, graph);
    *result = error == cudaSuccess ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateError;
    return error;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
    EMU_API;
    if (emu::capturing) return emu::keep(cudaErrorInvalidValue);
    emu::capturing = new std::vector<std::function<void()>>;
    return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* to) {
    EMU_API;
    if (!emu::capturing) return emu::keep(cudaErrorInvalidValue);
    *to = new CUgraph_st;
    for (auto& run : *emu::capturing) emu::add_node(nullptr, *to, std::move(run));
    delete emu::capturing;
    emu::capturing = nullptr;
    return cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* to) {
    *to = emu::capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
EMU_UNSUPPORTED(cudaGraphAddChildGraphNode)
EMU_UNSUPPORTED(cudaGraphAddMemAllocNode)
EMU_UNSUPPORTED(cudaGraphAddMemFreeNode)

// Writes down each kernel that a process runs on its GPUs, in CUDA graphs too: name, device, stream, grid, start and end; and each copy
// on a GPU or to another, as a kernel `copy_engine` without blocks.
//
//     g++ -O1 -shared -fPIC -std=c++17 -I CUPTI/include -I CUDA/include trace.cpp -o trace.so -L CUPTI/lib -l:libcupti.so.13
//     LAB_TRACE=step.json CUDA_INJECTION64_PATH=$PWD/trace.so lab lm train … --gpus 2 --steps 24
//
// The driver loads the file that CUDA_INJECTION64_PATH names and calls InitializeInjection. The process must end by itself: what CUPTI
// holds is written then. `draw.py` draws a step of what is written: a JSON array, an object a line, times in nanoseconds.
#include <cupti.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace {

constexpr size_t BYTES = 8 << 20;

std::mutex guard;
FILE* out = nullptr;
size_t written = 0, dropped = 0;

bool succeeded(CUptiResult result, const char* what) {
    if (result == CUPTI_SUCCESS) return true;
    const char* text = "unknown";
    cuptiGetResultString(result, &text);
    std::fprintf(stderr, "trace: %s: %s\n", what, text);
    return false;
}

void request(uint8_t** buffer, size_t* size, size_t* most) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, BYTES));
    *size = *buffer ? BYTES : 0;
    *most = 0;
}

// How the record of a copy begins, in each version of CUPTI.
struct Copy {
    CUpti_ActivityKind kind;
    uint8_t copy_kind, from, to, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream;
};

void write(const Copy& copy) {
    if (copy.copy_kind != CUPTI_ACTIVITY_MEMCPY_KIND_DTOD && copy.copy_kind != CUPTI_ACTIVITY_MEMCPY_KIND_PTOP) return;
    std::fprintf(out,
                 "%s{\"device\":%u,\"stream\":%u,\"blocks\":0,\"threads\":0,\"bytes\":%llu,\"start\":%llu,\"end\":%llu,\"name\":\"copy_engine\"}",
                 written++ ? ",\n" : "", copy.device, copy.stream, static_cast<unsigned long long>(copy.bytes),
                 static_cast<unsigned long long>(copy.start), static_cast<unsigned long long>(copy.end));
}

// A kernel's name has nothing that JSON escapes: it is a mangled one.
void write(const CUpti_ActivityKernel9& kernel) {
    std::fprintf(out,
                 "%s{\"device\":%u,\"stream\":%u,\"blocks\":%lld,\"threads\":%lld,\"start\":%llu,\"end\":%llu,\"name\":\"%s\"}",
                 written++ ? ",\n" : "", kernel.deviceId, kernel.streamId,
                 1ll * kernel.gridX * kernel.gridY * kernel.gridZ, 1ll * kernel.blockX * kernel.blockY * kernel.blockZ,
                 static_cast<unsigned long long>(kernel.start), static_cast<unsigned long long>(kernel.end),
                 kernel.name ? kernel.name : "");
}

void complete(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
    std::lock_guard<std::mutex> lock(guard);
    CUpti_Activity* record = nullptr;
    while (out && valid && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
            write(*reinterpret_cast<const CUpti_ActivityKernel9*>(record));
        else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY || record->kind == CUPTI_ACTIVITY_KIND_MEMCPY2)
            write(*reinterpret_cast<const Copy*>(record));
    size_t lost = 0;
    if (cuptiActivityGetNumDroppedRecords(context, stream, &lost) == CUPTI_SUCCESS) dropped += lost;
    std::free(buffer);
}

void finish() {
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    std::lock_guard<std::mutex> lock(guard);
    if (!out) return;
    std::fprintf(out, "\n]\n");
    std::fclose(out);
    out = nullptr;
    std::fprintf(stderr, "trace: %zu kernels and copies, %zu lost\n", written, dropped);
}

}  // namespace

extern "C" int InitializeInjection(void) {
    const char* path = std::getenv("LAB_TRACE");
    if (!path || !(out = std::fopen(path, "w"))) {
        std::fprintf(stderr, "trace: LAB_TRACE names no file that can be written\n");
        return 0;
    }
    std::fprintf(out, "[\n");
    if (!succeeded(cuptiActivityRegisterCallbacks(request, complete), "callbacks")) return 0;
    if (!succeeded(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "kernels")) return 0;
    if (!succeeded(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY), "copies")) return 0;
    if (!succeeded(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY2), "copies to others")) return 0;
    std::atexit(finish);
    return 1;
}

// What nvcc makes of a program's host code, by hand: a fat binary with kernels.ptx, which is registered before main, and
// launches by the runtime library's own names. Any C++ compiler takes it; -DKERNELS="path of kernels.ptx", or of another file,
// and -DENTRY=2 for machine code in its place.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#ifndef ENTRY
#define ENTRY 1
#endif
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
// The header of the whole, and of its one entry: shared/app/src/built/fat_binary.rs.
asm(".section .nv_fatbin, \"a\"\n.align 8\n"
    "fat_binary:\n.long 0xba55ed50\n.short 1, 16\n.quad fat_end - entry\n"
    "entry:\n.short " TEXT(ENTRY) ", 0x101\n.long 64\n.quad fat_end - text\n"
    ".long 0, 64\n.short 0, 9\n.long 90, 0, 0\n.quad 0x11, 0, 0\n"
    "text:\n.incbin \"" KERNELS "\"\n.byte 0\n.align 8\nfat_end:\n.text\n");
extern "C" const char fat_binary[];

struct dim3 { unsigned x, y, z; };
extern "C" {
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFatBinaryEnd(void**);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*);
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int);
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*);
int __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*);
int cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, void*);
int cudaLaunchKernelExC(const void*, const void*, void**);
int cudaMalloc(void**, size_t);
int cudaMallocHost(void**, size_t);
int cudaFree(void*);
int cudaMemcpy(void*, const void*, size_t, int);
int cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, int);
int cudaMemcpyFromSymbol(void*, const void*, size_t, size_t, int);
int cudaDeviceSynchronize();
int cudaGetLastError();
const char* cudaGetErrorName(int);
int cudaIpcGetMemHandle(void*, void*);
int cudaHostRegister(void*, size_t, unsigned);
int cudaHostUnregister(void*);
int cudaHostGetDevicePointer(void**, void*, unsigned);
}

static void launch(const void* stub, void** arguments) {
    dim3 grid, block;
    size_t shared;
    void* stream;
    __cudaPopCallConfiguration(&grid, &block, &shared, &stream);
    cudaLaunchKernel(stub, grid, block, arguments, shared, stream);
}
// The host's functions of the kernels' names.
static void add(const float* a, const float* b, float* c, int n) {
    void* arguments[] = {&a, &b, &c, &n};
    launch((const void*)add, arguments);
}
struct Range { float* x; long n, padding[5]; };
static void reverse_scaled(Range range) {
    void* arguments[] = {&range};
    launch((const void*)reverse_scaled, arguments);
}
static float scale;
static int count;

__attribute__((constructor)) static void register_all() {
    static struct { uint32_t magic, version; const void* data; void* more; } wrapper = {0x466243b1, 1, fat_binary, nullptr};
    void** module = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(module, (const char*)add, nullptr, "_Z3addPKfS0_Pfi", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
    __cudaRegisterFunction(module, (const char*)reverse_scaled, nullptr, "_Z14reverse_scaled5Range", -1, nullptr, nullptr,
                           nullptr, nullptr, nullptr);
    __cudaRegisterVar(module, (char*)&scale, nullptr, "scale", 0, sizeof scale, 1, 0);
    __cudaRegisterVar(module, (char*)&count, nullptr, "count", 0, sizeof count, 0, 0);
    __cudaRegisterFatBinaryEnd(module);
}

#define EXPECT(x, expected) \
    if (int code = (x); code != (expected)) return printf("%s: %s\n", #x, cudaGetErrorName(code)), 1

static int run_add(int n) {
    float *a, *b, *c, own[1000];
    for (void** to : {(void**)&a, (void**)&b, (void**)&c}) EXPECT(cudaMalloc(to, n * sizeof(float)), 0);
    for (int i = 0; i < n; ++i) own[i] = float(i);
    EXPECT(cudaMemcpy(a, own, n * sizeof(float), 1), 0);
    EXPECT(cudaMemcpy(b, a, n * sizeof(float), 3), 0);
    if (!__cudaPushCallConfiguration({4, 1, 1}, {256, 1, 1}, 0, nullptr)) add(a, b, c, n);
    printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    return 0;
}
static int run_scaled() {
    const int n = 256;
    float *x, factor = 2;
    int counted;
    EXPECT(cudaMallocHost((void**)&x, n * sizeof(float)), 0);
    for (int i = 0; i < n; ++i) x[i] = float(i);
    EXPECT(cudaMemcpyToSymbol(&scale, &factor, sizeof factor, 0, 1), 0);
    printf("before, ");
    if (!__cudaPushCallConfiguration({2, 1, 1}, {128, 1, 1}, 512, nullptr)) reverse_scaled({x, n, {}});
    EXPECT(cudaGetLastError(), 0);
    // The same by a description: grid, block, shared memory, stream, attributes.
    struct { dim3 grid, block; size_t shared; void *stream, *attributes; unsigned count; } config = {{2, 1, 1}, {128, 1, 1}, 512};
    Range range = {x, n, {}};
    void* arguments[] = {&range};
    EXPECT(cudaLaunchKernelExC(&config, (const void*)reverse_scaled, arguments), 0);
    EXPECT(cudaMemcpyFromSymbol(&counted, &count, sizeof counted, 0, 2), 0);
    for (int i = 0; i < n; ++i)
        if (x[i] != 4 * float(i)) return printf("wrong at %d: %g\n", i, double(x[i])), 1;
    printf("counted %d\n", counted);
    return 0;
}

// Memory of the program's own, at no page's beginning, that kernels use too.
static int run_registered() {
    static float all[4096];
    float *x = all + 100, *device, factor = 3;
    for (int i = 0; i < 4096; ++i) all[i] = float(i);
    EXPECT(cudaHostRegister(x, 128 * sizeof(float), 2), 0);
    EXPECT(cudaHostRegister(x, 128 * sizeof(float), 2), 712);
    EXPECT(cudaHostGetDevicePointer((void**)&device, x, 0), 0);
    EXPECT(cudaMemcpyToSymbol(&scale, &factor, sizeof factor, 0, 1), 0);
    if (!__cudaPushCallConfiguration({1, 1, 1}, {128, 1, 1}, 512, nullptr)) reverse_scaled({device, 128, {}});
    EXPECT(cudaDeviceSynchronize(), 0);
    EXPECT(cudaHostUnregister(x), 0);
    for (int i = 0; i < 4096; ++i)
        if (all[i] != (i < 100 || i >= 228 ? float(i) : 3 * float(327 - i))) return printf("wrong at %d: %g\n", i, double(all[i])), 1;
    return 0;
}

int main(int count, char** arguments) {
    const char* what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "add")) return run_add(1000);
    if (!strcmp(what, "scaled")) return run_scaled();
    if (!strcmp(what, "registered")) return run_registered();
    if (!strcmp(what, "refused")) return printf("%s\n", cudaGetErrorName(cudaIpcGetMemHandle(nullptr, nullptr))), 0;
    if (!strcmp(what, "fault")) *(volatile int*)nullptr = 0;
    if (!strcmp(what, "spin"))
        for (volatile int n = 0;; n = n + 1) {}
    return 7;
}

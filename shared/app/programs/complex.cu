// Complex numbers by cuComplex.h in a kernel, held against the C++ library's on the host.
#include <cuComplex.h>

#include <complex>
#include <cstdio>

#if __CUDACC_VER_MAJOR__ < 12
#error "expected the version of a compiler that is not older"
#endif

__global__ void formulas(cuDoubleComplex* z, cuFloatComplex* w) {
    z[0] = cuCdiv(cuCmul(z[0], z[1]), cuCadd(z[2], cuConj(z[1])));
    w[0] = cuCdivf(cuCmulf(w[0], w[1]), cuCsubf(w[2], make_cuComplex(cuCrealf(w[1]), cuCimagf(w[0]))));
    w[1] = make_cuFloatComplex(cuCabsf(w[0]), float(cuCabs(z[0])));
    w[2] = cuCfmaf(w[0], w[1], w[2]);
}

int main() {
    using Complex = std::complex<double>;
    cuDoubleComplex z[3] = {{1, 2}, {3, -4}, {0.5, 7}}, *device_z;
    cuFloatComplex w[3] = {{1, 2}, {3, -4}, {0.5f, 7}}, *device_w;
    cudaMalloc(&device_z, sizeof z);
    cudaMalloc(&device_w, sizeof w);
    cudaMemcpy(device_z, z, sizeof z, cudaMemcpyHostToDevice);
    cudaMemcpy(device_w, w, sizeof w, cudaMemcpyHostToDevice);
    formulas<<<1, 1>>>(device_z, device_w);
    cudaMemcpy(z, device_z, sizeof z, cudaMemcpyDeviceToHost);
    cudaMemcpy(w, device_w, sizeof w, cudaMemcpyDeviceToHost);
    Complex a(1, 2), b(3, -4), c(0.5, 7);
    Complex first = a * b / (c + std::conj(b)), second = a * b / (c - Complex(b.real(), a.imag()));
    Complex third = second * Complex(std::abs(second), std::abs(first)) + c;
    double errors[] = {std::abs(first - Complex(z[0].x, z[0].y)), std::abs(second - Complex(w[0].x, w[0].y)),
                       std::abs(third - Complex(w[2].x, w[2].y))};
    bool right = errors[0] < 1e-14 && errors[1] < 1e-6 && errors[2] < 1e-5;
    printf("%s: errors %g, %g, %g\n", right ? "right" : "wrong", errors[0], errors[1], errors[2]);
    return !right;
}

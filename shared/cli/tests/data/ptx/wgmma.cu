// One product of each type and layout, with A in shared memory and in registers. Those that are wrong on purpose are of 16
// columns, too, and run the first ones alone.
void run(unsigned* out) {
    launch<__half, 16, 0, 0, false>(out);
    launch<__half, 16, 1, 0, false>(out + 512);
    launch<__half, 16, 0, 0, true>(out + 1024);
#if SIDE < 2
    launch<__half, 16, 0, 1, false>(out + 1536);
    launch<__nv_bfloat16, 16, 1, 1, false>(out + 2048);
    launch<float, 16, 0, 0, false>(out + 2560);
    launch<__nv_bfloat16, 16, 0, 1, true>(out + 3072);
    launch<float, 16, 0, 0, true>(out + 3584);
#endif
}

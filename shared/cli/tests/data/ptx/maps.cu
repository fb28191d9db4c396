// A tensor map of f32, of up to five dimensions.
TensorMap map_of(void* memory, int rank) {
    cuuint64_t sizes[] = {12, 5, 3, 2, 2}, strides[] = {48, 240, 720, 1440};
    cuuint32_t box[] = {8, 2, 2, 2, 1}, steps[] = {1, 1, 1, 1, 1};
    CUtensorMap map;
    if (cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, rank, memory, sizes, strides, box, steps,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                               CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
        abort();
    TensorMap own;
    static_assert(sizeof own == sizeof map, "one is the other");
    memcpy(&own, &map, sizeof own);
    return own;
}

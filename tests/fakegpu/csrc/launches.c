#include "launches.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "knobs.h"
#include "memory.h"

/* Why these three, when everything that computes stays undone:
 * - fills: GradScaler steps only when the zero that it wrote is still a zero, and a flag or a sum read with .item()
 * should not be what the block's last owner left there;
 * - strided copies: x.to("cuda") of a transposed tensor ends with one, and must come back as it went;
 * - cat: DistributedDataParallel flattens the parameters with it before rank 0 sends them to the others.
 *
 * Arguments and the layouts behind them are read from PyTorch's aten/src/ATen/native/cuda: CUDALoops.cuh,
 * FillKernel.cu, Copy.cu, Shape.cu and aten/src/ATen/cuda/detail/OffsetCalculator.cuh. A pointer that does not lead
 * into memory of ours means that another version lays things out otherwise; the kernel is then left alone like all
 * others. */

/* Work on single elements costs time and commits host memory, and every attention layer makes strided copies, so there
 * is an end to it: 64 Ki floats take about 0.1 ms. Zeros (given back as pages) and runs copied at once may be larger.
 */
static const size_t LARGEST_BYTES_BY_ELEMENT = (size_t)1 << 18;
static const size_t LARGEST_RUN_BYTES = (size_t)1 << 28;

enum kernel_kind { NOT_KNOWN, FILL, STRIDED_COPY, CAT };

struct kernel {
    const void *host_stub;
    enum kernel_kind kind;
    size_t item_bytes;
    int dims, inputs_room; /* of CAT: template arguments Dims and n */
    bool reads_strides;    /* of CAT: inputs need not be contiguous */
    bool vectorized;       /* of CAT: item_bytes are those of a vector of items_per_vector */
    size_t items_per_vector;
};

enum { SLOTS = 4096 }; /* a hash table of some 350 entries */
static struct kernel kernels[SLOTS];

static struct kernel *slot_of(const void *host_stub)
{
    size_t slot = ((uintptr_t)host_stub >> 4) * 2654435761u % SLOTS;
    while (kernels[slot].host_stub != NULL && kernels[slot].host_stub != host_stub)
        slot = (slot + 1) % SLOTS;
    return &kernels[slot];
}

/* ---- names ---- */

/* sizeof(T) from its mangled name; 0 for one that is not known. */
static size_t size_of_type(const char *type)
{
    static const struct {
        const char *mangled;
        size_t bytes;
    } types[] = {
        {"b", 1},
        {"h", 1},
        {"a", 1},
        {"s", 2},
        {"t", 2},
        {"i", 4},
        {"j", 4},
        {"f", 4},
        {"l", 8},
        {"m", 8},
        {"d", 8},
        {"N3c104Half", 2},
        {"N3c108BFloat16", 2},
        {"N3c107complexIf", 8},
        {"N3c107complexId", 16},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strncmp(type, types[i].mangled, strlen(types[i].mangled)) == 0)
            return types[i].bytes;
    return 0;
}

/* What follows the first `part` in the text; NULL when it is not there. */
static const char *after(const char *text, const char *part)
{
    const char *found = text == NULL ? NULL : strstr(text, part);
    return found == NULL ? NULL : found + strlen(part);
}

static bool begins(const char *text, const char *beginning)
{
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

/* {vectorized,unrolled}_elementwise_kernel<..., FillFunctor<T>, std::array<char*, 1>, ...>(int, FillFunctor<T>,
 * std::array<char*, 1>, ...) */
static struct kernel as_fill(const char *name)
{
    const char *type = NULL;
    if (begins(name, "_ZN2at6native27unrolled_elementwise_kernelINS0_11FillFunctorI") &&
        strstr(name, "StoreWithoutCast"))
        type = after(name, "FillFunctorI");
    else if (begins(name, "_ZN2at6native29vectorized_elementwise_kernelILi")) {
        const char *width = after(name, "ILi"); /* one digit; the functor must be what follows it */
        if (begins(width + 1, "ENS0_11FillFunctorI"))
            type = after(width, "FillFunctorI");
    }
    size_t bytes = type == NULL ? 0 : size_of_type(type);
    return (struct kernel){.kind = bytes > 0 ? FILL : NOT_KNOWN, .item_bytes = bytes};
}

/* elementwise_kernel<..., gpu_kernel_impl_nocast<direct_copy_kernel_cuda(...)::{lambda(T)}>(...)::{lambda(int)}>(int,
 * that lambda) */
static struct kernel as_strided_copy(const char *name)
{
    const char *type = NULL;
    if (begins(name, "_ZN2at6native18elementwise_kernelI") &&
        strstr(name, "gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_cuda"))
        type = after(name, "clEvEUl");
    size_t bytes = type == NULL ? 0 : size_of_type(type);
    return (struct kernel){.kind = bytes > 0 ? STRIDED_COPY : NOT_KNOWN, .item_bytes = bytes};
}

/* The next template argument that is a literal, after `from`: "Li128E" -> 128. */
static long next_literal(const char **from)
{
    *from = after(*from, "ELi");
    return *from == NULL ? 0 : strtol(*from, NULL, 10);
}

/* CatArrayBatchedCopy<OpaqueType<BYTES>, unsigned, DIMS, N, STRIDES>, its _contig and _alignedK_contig forms, and
 * CatArrayBatchedCopy_vectorized<OpaqueType<BYTES>, unsigned, DIMS, N, STRIDES, VECTOR_BYTES, ITEMS_PER_VECTOR>. */
static struct kernel as_cat(const char *name)
{
    const char *form = after(name, "CatArrayBatchedCopy"), *opaque = after(form, "OpaqueTypeILj"),
               *cursor = after(opaque, "EEEj");
    if (cursor == NULL)
        return (struct kernel){.kind = NOT_KNOWN};
    struct kernel kernel = {.kind = CAT, .item_bytes = strtoul(opaque, NULL, 10), .items_per_vector = 1};
    kernel.reads_strides = *form == 'I';
    kernel.dims = (int)strtol(cursor + 2, NULL, 10); /* the cursor is at "Li4ELi128E..." */
    kernel.inputs_room = (int)next_literal(&cursor);
    next_literal(&cursor); /* how many stride records follow; they come last, so it does not matter */
    if (begins(form, "_vectorized")) {
        kernel.vectorized = true;
        kernel.item_bytes = (size_t)next_literal(&cursor);
        kernel.items_per_vector = (size_t)next_literal(&cursor);
    }
    return kernel.items_per_vector == 0 ? (struct kernel){.kind = NOT_KNOWN} : kernel;
}

void remember_kernel(const void *host_stub, const char *name)
{
    struct kernel kernel = as_fill(name);
    if (kernel.kind == NOT_KNOWN)
        kernel = as_strided_copy(name);
    if (kernel.kind == NOT_KNOWN)
        kernel = as_cat(name);
    if (kernel.kind == NOT_KNOWN)
        return;
    kernel.host_stub = host_stub;
    *slot_of(host_stub) = kernel;
}

/* ---- carrying them out ---- */

/* True when [address, address + bytes) is memory that we gave out. Neighbouring mappings of one range count as one. */
static bool is_ours(const void *address, size_t bytes)
{
    const char *cursor = address, *end = cursor + bytes;
    struct region region;
    while (cursor < end) {
        if (!find_region(cursor, &region))
            return false;
        cursor = (const char *)region.start + region.bytes;
    }
    return true;
}

/* memcpy of a size that the compiler knows is one instruction, of another a call. */
static inline void copy_item(char *to, const char *from, size_t bytes)
{
    switch (bytes) {
    case 1: *to = *from; break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    case 8: memcpy(to, from, 8); break;
    default: memcpy(to, from, 16);
    }
}

static void run_fill(const struct kernel *kernel, void **arguments)
{
    size_t count = (size_t)*(int *)arguments[0], item = kernel->item_bytes;
    const unsigned char *value = arguments[1];
    char *out = *(char **)arguments[2];
    static const unsigned char zeros[16];
    if (!is_ours(out, count * item))
        return;
    if (memcmp(value, zeros, item) == 0)
        fill_bytes(out, 0, count * item);
    else if (count * item <= LARGEST_BYTES_BY_ELEMENT)
        for (size_t i = 0; i < count; i++)
            copy_item(out + i * item, (const char *)value, item);
}

enum { MOST_DIMS = 25 };

struct strided_copy { /* what the lambda captured: an OffsetCalculator<2> and the two pointers */
    int dims;
    struct {
        uint32_t divisor, magic, shift;
    } sizes[MOST_DIMS];
    uint32_t strides_bytes[MOST_DIMS][2];
    char *pointers[2]; /* out, in */
};

static void run_strided_copy(const struct kernel *kernel, void **arguments)
{
    size_t count = (size_t)*(int *)arguments[0], item = kernel->item_bytes;
    const struct strided_copy *copy = arguments[1];
    if (copy->dims < 0 || copy->dims > MOST_DIMS || count * item > LARGEST_BYTES_BY_ELEMENT)
        return;
    size_t last[2] = {0, 0};
    for (int dim = 0; dim < copy->dims; dim++)
        for (int side = 0; side < 2; side++)
            last[side] += (size_t)(copy->sizes[dim].divisor - 1) * copy->strides_bytes[dim][side];
    if (!is_ours(copy->pointers[0], last[0] + item) || !is_ours(copy->pointers[1], last[1] + item))
        return;
    /* An odometer over the dimensions, the fastest first: dividing each index would take several times as long. */
    uint32_t index[MOST_DIMS] = {0};
    char *to = copy->pointers[0];
    const char *from = copy->pointers[1];
    for (size_t i = 0; i < count; i++) {
        copy_item(to, from, item);
        for (int dim = 0; dim < copy->dims; dim++) {
            to += copy->strides_bytes[dim][0];
            from += copy->strides_bytes[dim][1];
            if (++index[dim] < copy->sizes[dim].divisor)
                break;
            to -= (size_t)index[dim] * copy->strides_bytes[dim][0];
            from -= (size_t)index[dim] * copy->strides_bytes[dim][1];
            index[dim] = 0;
        }
    }
}

struct cat_shape { /* TensorSizeStride<unsigned, 4> */
    uint32_t size[4], stride[4];
};

/* Where item i lies in a tensor of that shape (the kernel's CatArrIndexToOffset). */
static size_t cat_offset(const struct cat_shape *shape, int dims, int cat_dim, size_t cat_dim_size, size_t i)
{
    size_t offset = 0;
    for (int dim = dims - 1; dim >= 1; dim--) {
        size_t size = dim == cat_dim ? cat_dim_size : shape->size[dim];
        offset += i % size * shape->stride[dim];
        i /= size;
    }
    return offset + i * shape->stride[0];
}

/* kernel(T *out, CatArrInputTensorMetadata<T, unsigned, n, strides> inputs, TensorSizeStride out_shape, int cat_dim,
 * unsigned inner): the metadata is: T *input[n], unsigned offset[n], dim_size[n], elements[n], bool is_contiguous[n],
 * TensorSizeStride shape[strides]. One input for each block in y. */
static void run_cat(const struct kernel *kernel, struct dim3 grid, void **arguments)
{
    char *out = *(char **)arguments[0];
    int room = kernel->inputs_room;
    char **inputs = arguments[1];
    const uint32_t *offsets = (const uint32_t *)(inputs + room), *dim_sizes = offsets + room,
                   *elements = dim_sizes + room;
    const bool *is_contiguous = (const bool *)(elements + room);
    const struct cat_shape *in_shapes = (const struct cat_shape *)(is_contiguous + room), *out_shape = arguments[2];
    int cat_dim = *(int *)arguments[3];
    size_t item = kernel->item_bytes, vector = kernel->items_per_vector;
    /* In the vectorized form sizes along the dimension are in items of the tensor, and the last argument is what lies
     * inside one index of it; in the others the last argument is the stride of the dimension, and only the offset is
     * multiplied. */
    size_t inner = *(uint32_t *)arguments[4], widen = kernel->vectorized ? inner : 1;
    for (unsigned input = 0; input < grid.y && input < (unsigned)room; input++) {
        size_t count = elements[input] / vector, bytes = count * item, dim_size = dim_sizes[input] * widen / vector;
        bool strided = kernel->reads_strides && !is_contiguous[input];
        char *start = out + offsets[input] * inner / vector * item;
        if (count == 0 || !is_ours(inputs[input], strided ? item : bytes) || !is_ours(start, item))
            continue;
        if (kernel->dims == 1 && !strided) {
            if (bytes <= LARGEST_RUN_BYTES && is_ours(start, bytes))
                memcpy(start, inputs[input], bytes);
            continue;
        }
        for (size_t i = 0; bytes <= LARGEST_BYTES_BY_ELEMENT && i < count; i++) {
            size_t from = strided ? cat_offset(&in_shapes[input], kernel->dims, cat_dim, dim_size, i) : i;
            size_t to = cat_offset(out_shape, kernel->dims, cat_dim, dim_size, i);
            copy_item(start + to * item, inputs[input] + from * item, item);
        }
    }
}

static uint64_t delay_us;

__attribute__((constructor)) static void read_knobs(void)
{
    delay_us = knob_number("FAKEGPU_KERNEL_DELAY_US", 0, 0, 60000000);
}

void run_kernel(const void *host_stub, struct dim3 grid, void **arguments)
{
    if (delay_us > 0)
        usleep((useconds_t)delay_us);
    const struct kernel *kernel = slot_of(host_stub);
    switch (kernel->kind) {
    case FILL: run_fill(kernel, arguments); break;
    case STRIDED_COPY: run_strided_copy(kernel, arguments); break;
    case CAT: run_cat(kernel, grid, arguments); break;
    case NOT_KNOWN: break;
    }
}

/* cuBLASLt: offers one algorithm that needs no workspace; without an offer PyTorch warns and takes another road. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct heuristic_result { /* cublasLtMatmulHeuristicResult_t */
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

static int a_descriptor;

static int give(void **out)
{
    *out = &a_descriptor;
    return 0;
}

int cublasLtCreate(void **handle)
{
    return give(handle);
}

int cublasLtMatmulDescCreate(void **descriptor)
{
    return give(descriptor);
}

int cublasLtMatmulPreferenceCreate(void **preference)
{
    return give(preference);
}

int cublasLtMatrixLayoutCreate(void **layout)
{
    return give(layout);
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, struct heuristic_result *results, int *found)
{
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *found = wanted > 0;
    if (wanted > 0)
        memset(results, 0, sizeof *results);
    return 0;
}

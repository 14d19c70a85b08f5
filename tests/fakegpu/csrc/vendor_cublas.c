/* cuBLAS: every product succeeds and computes nothing. PyTorch takes a handle and two modes from it. */

static int a_handle;

int cublasCreate_v2(void **handle)
{
    *handle = &a_handle;
    return 0;
}

int cublasGetMathMode(void *handle, int *mode)
{
    (void)handle;
    *mode = 0;
    return 0;
}

int cublasGetPointerMode_v2(void *handle, int *mode)
{
    (void)handle;
    *mode = 0;
    return 0;
}

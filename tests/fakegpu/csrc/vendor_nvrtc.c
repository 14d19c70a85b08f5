/* NVRTC: compiles anything to one byte, which the stub driver loads as a module whose kernels do nothing. */
#include <stddef.h>

static int a_program;

int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return 0;
}

int nvrtcCreateProgram(void **program, const char *source, const char *name, int headers, const char **contents,
                       const char **names)
{
    (void)source, (void)name, (void)headers, (void)contents, (void)names;
    *program = &a_program;
    return 0;
}

int nvrtcGetLoweredName(void *program, const char *expression, const char **lowered)
{
    (void)program;
    *lowered = expression;
    return 0;
}

static int one_byte(size_t *bytes)
{
    *bytes = 1;
    return 0;
}

int nvrtcGetCUBINSize(void *program, size_t *bytes)
{
    (void)program;
    return one_byte(bytes);
}

int nvrtcGetPTXSize(void *program, size_t *bytes)
{
    (void)program;
    return one_byte(bytes);
}

int nvrtcGetProgramLogSize(void *program, size_t *bytes)
{
    (void)program;
    return one_byte(bytes);
}

const char *nvrtcGetErrorString(int error)
{
    return error == 0 ? "no error" : "error";
}

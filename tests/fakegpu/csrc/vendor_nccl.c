/* NCCL is not here: say so at the first call instead of pretending that ranks talk to each other. Use gloo on the rig.
 */

enum { INVALID_USAGE = 5 };

int ncclGetVersion(int *version)
{
    *version = 22907;
    return 0;
}

const char *ncclGetErrorString(int error)
{
    return error == 0 ? "no error" : "NCCL does not exist on the fake-GPU rig: use the gloo backend";
}

const char *ncclGetLastError(void *communicator)
{
    (void)communicator;
    return "NCCL does not exist on the fake-GPU rig: use the gloo backend";
}

int ncclGetUniqueId(void *id)
{
    (void)id;
    return INVALID_USAGE;
}

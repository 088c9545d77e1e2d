# Where the run.sh of CANN's samples looks for it: source ${ASCEND_HOME_PATH}/bin/setenv.bash
. "$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)/set_env.sh"

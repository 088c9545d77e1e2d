# Source this file to compile and run programs against Descend: . /path/to/set_env.sh
# bash and zsh tell where it lies; for other shells the folder was written in here when it was installed.
descend_home='@DESCEND_HOME@'
if [ -n "${BASH_SOURCE:-}" ]; then
  descend_home=$(CDPATH='' cd -- "$(dirname -- "$BASH_SOURCE")" && pwd)
elif [ -n "${ZSH_VERSION:-}" ]; then
  eval 'descend_home=${${(%):-%x}:A:h}'
fi
if [ -d "$descend_home/include/acl" ]; then
  export ASCEND_CUSTOM_PATH="$descend_home"
  export ASCEND_HOME_PATH="$descend_home"
  export ASCEND_TOOLKIT_HOME="$descend_home"
  export ASCEND_OPP_PATH="$descend_home/opp"
  case ":${LD_LIBRARY_PATH:-}:" in
    *":$descend_home/lib64:"*) ;;
    *) export LD_LIBRARY_PATH="$descend_home/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ;;
  esac
  # for CMake's find_package(descend) and for pkg-config
  case ":${CMAKE_PREFIX_PATH:-}:" in
    *":$descend_home:"*) ;;
    *) export CMAKE_PREFIX_PATH="$descend_home${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}" ;;
  esac
  case ":${PKG_CONFIG_PATH:-}:" in
    *":$descend_home/lib64/pkgconfig:"*) ;;
    *) export PKG_CONFIG_PATH="$descend_home/lib64/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}" ;;
  esac
else
  echo "set_env.sh: $descend_home is not an installation of Descend" >&2
fi
unset descend_home

"""Functions of C libraries, by name: in a statically linked program only names identify them."""

from __future__ import annotations

import re

# Names reserved for implementations of C, without those that compilers use.
_RESERVED = re.compile(r"(?!__cxx_global|__static_init)__\w+|_(?:IO|dl|nl|nss|int)_\w+")

# Public functions that allocate, or may allocate.
_PUBLIC = re.compile(
    r"""(?:f|d|s|sn|as|v|vf|vd|vas)?w?printf | v?f?w?scanf | f?puts | f?putc | putchar | fwrite | fread
    | f?gets | f?getc | getchar | fflush | setvbuf | (?:f|fd|fre|fmem)open(?:64)? | open_w?memstream
    | popen | tmpfile(?:64)? | tempnam | perror | error | err | warn | v?syslog | openlog
    | (?:fd)?opendir | scandir(?:at)?(?:64)? | n?ftw(?:64)? | glob(?:64)? | fts_open | wordexp
    | realpath | getcwd | get_current_dir_name | canonicalize_file_name
    | qsort(?:_r)? | tsearch | hcreate(?:_r)? | regcomp | regexec | iconv_open | iconv
    | (?:set|put|unset|clear)env | atexit | on_exit
    | setlocale | newlocale | duplocale | localeconv | bindtextdomain | textdomain | d?c?n?gettext
    | tzset | localtime(?:_r)? | mktime | strftime | timer_create | sem_open
    | getaddrinfo | getnameinfo | getifaddrs | get(?:hostby|serv|proto|pw|gr)\w+ | res_\w+
    | pthread_create | posix_spawnp? | posix_spawn_file_actions_\w+ | dlopen | dlsym | dlerror
    | argz_\w+ | envz_\w+ | obstack_\w+""",
    re.VERBOSE,
)


def is_c_library_function(name: str) -> bool:
    """Whether a name is that of a C library function that calls the allocator, or of a part of one."""
    name = name.partition(".")[0]
    return bool(_RESERVED.fullmatch(name) or _PUBLIC.fullmatch(name))

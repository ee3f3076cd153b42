/* Force-included by bcc before everything else; helpers.h refuses to go on without this option. */
#define CONFIG_BPF_SYSCALL 1

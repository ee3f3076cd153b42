"""The Java virtual machine of OpenJDK (HotSpot, "the JVM"): its frames, names and heap, read from outside.

Tested with 17 and 25. The JVM publishes the layout of its structures (`gHotSpotVMStructs`), so other releases
are likely to work. Nothing needs to be enabled in the process, and nothing is changed there.
"""

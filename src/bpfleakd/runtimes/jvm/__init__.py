"""The Java virtual machine of OpenJDK (HotSpot): its frames, names and heap, read from outside.

Tried with 17 and 25; the layout is what the machine states itself (`gHotSpotVMStructs`), so others are likely
to do. Nothing has to be switched on in the process, and nothing is changed there.
"""

// SPDX-License-Identifier: GPL-2.0-or-later
// malloc and free in a loop of native code, below Java frames: `java JavaWalk DIRECTORY FRAMES`, where DIRECTORY has
// libjavawalk.so. "run N" makes N pairs. Nothing stays live.

import java.io.BufferedReader;
import java.io.InputStreamReader;

public class JavaWalk {
    static native void pairs(int count);

    static void descend(int further, int count) {
        if (further > 0) {
            descend(further - 1, count);
        } else {
            pairs(count);
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.load(arguments[0] + "/libjavawalk.so");
        BufferedReader steps = new BufferedReader(new InputStreamReader(System.in));
        // With main(), pairs(), and descend() for 0.
        int further = Integer.parseInt(arguments[1]) - 3;
        System.out.println("ready");
        for (String step = steps.readLine(); step != null; step = steps.readLine()) {
            descend(further, Integer.parseInt(step.split(" ")[1]));
            System.out.println("{}");
        }
    }
}

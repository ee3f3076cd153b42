// SPDX-License-Identifier: GPL-2.0-or-later
// Compiles itself over and over, by which the machine compiles some thousands of methods; then it waits.

import java.io.StringWriter;
import java.net.URI;
import java.util.List;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;

public class ManyMethods {
    static final class Source extends SimpleJavaFileObject {
        private final int number;

        Source(int number) {
            super(URI.create("string:///Made" + number + ".java"), Kind.SOURCE);
            this.number = number;
        }

        @Override
        public CharSequence getCharContent(boolean ignored) {
            StringBuilder text = new StringBuilder("import java.util.*; class Made" + number + " {");
            for (int i = 0; i < 40; i++) {
                text.append("<T extends Comparable<T>> int m" + i + "(List<? super T> all) {"
                    + "Map<String, List<T>> map = new HashMap<>(); int sum = 0;"
                    + "for (Object one : all) { sum += one.hashCode() * " + i + "; map.computeIfAbsent(\"\" + sum, k -> new ArrayList<>()); }"
                    + "switch (sum) { case 1: return 2; default: return map.size(); } }");
            }
            return text.append("}");
        }
    }

    public static void main(String[] arguments) throws Exception {
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        for (int number = 0; number < 25; number++) {
            List<JavaFileObject> sources = List.of(new Source(number));
            compiler.getTask(new StringWriter(), null, null, List.of("-proc:none", "-implicit:none", "-Xlint:none", "-XDshould-stop.ifNoError=FLOW"), null, sources).call();
        }
        System.out.println("ready");
        Thread.sleep(Long.MAX_VALUE);
    }
}

// SPDX-License-Identifier: GPL-2.0-or-later
// Writes a program that leaks in Shop.Book.Keep, three times, into the directory that is its first argument: with its
// portable PDB beside it (Beside.dll), with the PDB in it (Embedded.dll), and with the PDB of another build beside it
// (Other.dll). Mono's compiler knows no portable PDBs: the runtime's own library for metadata writes them here, and
// reads them again. Each point that it reads is printed: token, IL offset, document, line.
using System;
using System.Collections.Generic;
using System.Collections.Immutable;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Reflection.Metadata;
using System.Reflection.Metadata.Ecma335;
using System.Reflection.PortableExecutable;

static class Writer
{
    static readonly Guid language = new Guid("3f5162f8-07c6-11d3-9053-00c04fa302a1");
    // IL offset and line; line 0 is hidden.
    static readonly (int, int)[] mainPoints = { (0, 39), (10, 40), (15, 0), (20, 43), (25, 300) };
    static readonly (int, int)[] keepPoints = { (0, 12), (11, 17), (23, 14) };

    static void Main(string[] arguments)
    {
        string directory = arguments[0];
        Write(directory, "Beside", 1, false);
        Write(directory, "Embedded", 2, true);
        Write(directory, "Other", 3, false);
        File.Copy(Path.Combine(directory, "Beside.pdb"), Path.Combine(directory, "Other.pdb"), true);
        var written = File.OpenRead(Path.Combine(directory, "Beside.pdb"));
        using (var provider = MetadataReaderProvider.FromPortablePdbStream(written))
            Print(provider.GetMetadataReader());
    }

    static void Print(MetadataReader reader)
    {
        foreach (var handle in reader.MethodDebugInformation)
            foreach (var point in reader.GetMethodDebugInformation(handle).GetSequencePoints())
                if (!point.IsHidden)
                    Console.WriteLine("{0:x} {1} {2} {3}",
                                      MetadataTokens.GetToken(handle.ToDefinitionHandle()), point.Offset,
                                      reader.GetString(reader.GetDocument(point.Document).Name), point.StartLine);
    }

    static void Write(string directory, string name, byte seed, bool embed)
    {
        var metadata = new MetadataBuilder();
        var bodies = new BlobBuilder();
        var entry = Program(metadata, name, new MethodBodyStreamEncoder(bodies));
        var pdb = DebugInformation(metadata.GetRowCounts(), entry, seed);
        var image = new BlobBuilder();
        var id = pdb.Serialize(image);
        var debug = new DebugDirectoryBuilder();
        debug.AddCodeViewEntry(name + ".pdb", id, pdb.FormatVersion);
        if (embed)
            debug.AddEmbeddedPortablePdbEntry(image, pdb.FormatVersion);
        else
            File.WriteAllBytes(Path.Combine(directory, name + ".pdb"), image.ToArray());
        var builder = new ManagedPEBuilder(new PEHeaderBuilder(imageCharacteristics: Characteristics.ExecutableImage),
                                           new MetadataRootBuilder(metadata), bodies, entryPoint: entry,
                                           debugDirectoryBuilder: debug);
        var program = new BlobBuilder();
        builder.Serialize(program);
        File.WriteAllBytes(Path.Combine(directory, name + ".dll"), program.ToArray());
    }

    static PortablePdbBuilder DebugInformation(ImmutableArray<int> rows, MethodDefinitionHandle entry, byte seed)
    {
        var metadata = new MetadataBuilder();
        var paths = new[] { "/src/shop/Ledger.cs", "C:\\src\\shop\\Generated.cs" };
        var documents = paths.Select(path => metadata.AddDocument(
            metadata.GetOrAddDocumentName(path), default(GuidHandle), default(BlobHandle),
            metadata.GetOrAddGuid(language))).ToArray();
        metadata.AddMethodDebugInformation(default(DocumentHandle),
                                           metadata.GetOrAddBlob(Points(keepPoints, documents)));
        metadata.AddMethodDebugInformation(documents[0], metadata.GetOrAddBlob(Points(mainPoints, null)));
        var id = new BlobContentId(new Guid(seed, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), 0x80000000u + seed);
        return new PortablePdbBuilder(metadata, rows, entry, blobs => id);
    }

    // With `documents`, the second point is of the second one, and the third of the first again.
    static BlobBuilder Points((int, int)[] points, DocumentHandle[] documents)
    {
        var blob = new BlobBuilder();
        blob.WriteCompressedInteger(0);
        if (documents != null)
            blob.WriteCompressedInteger(MetadataTokens.GetRowNumber(documents[0]));
        int offset = 0, line = 0, number = 0;
        foreach (var point in points)
        {
            int at = point.Item1, of = point.Item2;
            if (documents != null && number > 0)
            {
                blob.WriteCompressedInteger(0);
                blob.WriteCompressedInteger(MetadataTokens.GetRowNumber(documents[number % 2]));
            }
            blob.WriteCompressedInteger(at - offset);
            offset = at;
            blob.WriteCompressedInteger(0);
            if (of == 0)
                blob.WriteCompressedInteger(0);
            else
            {
                blob.WriteCompressedInteger(20);
                if (line == 0)
                {
                    blob.WriteCompressedInteger(of);
                    blob.WriteCompressedInteger(9);
                }
                else
                {
                    blob.WriteCompressedSignedInteger(of - line);
                    blob.WriteCompressedSignedInteger(0);
                }
                line = of;
            }
            number++;
        }
        return blob;
    }

    static MethodDefinitionHandle Program(MetadataBuilder metadata, string name, MethodBodyStreamEncoder bodies)
    {
        metadata.AddModule(0, metadata.GetOrAddString(name + ".dll"), metadata.GetOrAddGuid(Guid.NewGuid()),
                           default(GuidHandle), default(GuidHandle));
        metadata.AddAssembly(metadata.GetOrAddString(name), new Version(1, 0, 0, 0), default(StringHandle),
                             default(BlobHandle), 0, AssemblyHashAlgorithm.None);
        var core = Assembly(metadata, "System.Private.CoreLib", new Version(4, 0, 0, 0));
        Func<string, string, TypeReferenceHandle> type = (space, what) => Type(metadata, core, space, what);
        var objects = type("System", "Object");
        var list = type("System.Collections", "ArrayList");
        var bytes = type("System", "Byte");
        var none = Signature(metadata, false, 0, r => r.Void(), p => { });
        var newList = Member(metadata, list, ".ctor", Signature(metadata, true, 0, r => r.Void(), p => { }));
        var add = Member(metadata, list, "Add", Signature(metadata, true, 1, r => r.Type().Int32(),
                                                          p => p.AddParameter().Type().Object()));
        var sleep = Member(metadata, type("System.Threading", "Thread"), "Sleep",
                           Signature(metadata, false, 1, r => r.Void(), p => p.AddParameter().Type().Int32()));
        var consoles = Assembly(metadata, "System.Console", new Version(4, 1, 2, 0));
        var said = Member(metadata, Type(metadata, consoles, "System", "Console"), "WriteLine",
                          Signature(metadata, false, 1, r => r.Void(), p => p.AddParameter().Type().String()));

        var fieldType = new BlobBuilder();
        new BlobEncoder(fieldType).FieldSignature().Object();
        var kept = metadata.AddFieldDefinition(FieldAttributes.Static | FieldAttributes.Public,
                                               metadata.GetOrAddString("kept"), metadata.GetOrAddBlob(fieldType));

        var keep = new InstructionEncoder(new BlobBuilder(), new ControlFlowBuilder());
        keep.LoadConstantI4(100000);
        keep.OpCode(ILOpCode.Newarr);
        keep.Token(bytes);
        keep.StoreLocal(0);
        keep.OpCode(ILOpCode.Ldsfld);
        keep.Token(kept);
        keep.LoadLocal(0);
        keep.OpCode(ILOpCode.Callvirt);
        keep.Token(add);
        keep.OpCode(ILOpCode.Pop);
        keep.OpCode(ILOpCode.Ret);

        var main = new InstructionEncoder(new BlobBuilder(), new ControlFlowBuilder());
        main.LoadString(metadata.GetOrAddUserString("ready"));
        main.OpCode(ILOpCode.Call);
        main.Token(said);
        main.OpCode(ILOpCode.Newobj);
        main.Token(newList);
        main.OpCode(ILOpCode.Stsfld);
        main.Token(kept);
        var again = main.DefineLabel();
        main.MarkLabel(again);
        main.OpCode(ILOpCode.Call);
        main.Token(MetadataTokens.MethodDefinitionHandle(1));
        main.LoadConstantI4(3);
        main.OpCode(ILOpCode.Call);
        main.Token(sleep);
        main.Branch(ILOpCode.Br, again);

        var locals = new BlobBuilder();
        new BlobEncoder(locals).LocalVariableSignature(1).AddVariable().Type().Object();
        var oneLocal = metadata.AddStandaloneSignature(metadata.GetOrAddBlob(locals));

        var flags = MethodAttributes.Public | MethodAttributes.Static | MethodAttributes.HideBySig;
        Func<string, InstructionEncoder, MethodImplAttributes, MethodDefinitionHandle> method = (what, code, how) =>
            metadata.AddMethodDefinition(flags, how, metadata.GetOrAddString(what), none,
                                         bodies.AddMethodBody(code, 8, oneLocal), default(ParameterHandle));
        var first = method("Keep", keep, MethodImplAttributes.NoInlining);
        var entry = method("Main", main, MethodImplAttributes.IL);
        metadata.AddTypeDefinition(default(TypeAttributes), default(StringHandle), metadata.GetOrAddString("<Module>"),
                                   default(EntityHandle), kept, first);
        metadata.AddTypeDefinition(TypeAttributes.Public | TypeAttributes.Abstract | TypeAttributes.Sealed,
                                   metadata.GetOrAddString("Shop"), metadata.GetOrAddString("Book"), objects, kept,
                                   first);
        return entry;
    }

    static AssemblyReferenceHandle Assembly(MetadataBuilder metadata, string name, Version version)
    {
        return metadata.AddAssemblyReference(metadata.GetOrAddString(name), version, default(StringHandle),
                                             default(BlobHandle), 0, default(BlobHandle));
    }

    static TypeReferenceHandle Type(MetadataBuilder metadata, AssemblyReferenceHandle assembly, string space,
                                    string name)
    {
        return metadata.AddTypeReference(assembly, metadata.GetOrAddString(space), metadata.GetOrAddString(name));
    }

    static BlobHandle Signature(MetadataBuilder metadata, bool isInstance, int parameters,
                                Action<ReturnTypeEncoder> returns, Action<ParametersEncoder> takes)
    {
        var blob = new BlobBuilder();
        new BlobEncoder(blob).MethodSignature(isInstanceMethod: isInstance).Parameters(parameters, returns, takes);
        return metadata.GetOrAddBlob(blob);
    }

    static MemberReferenceHandle Member(MetadataBuilder metadata, EntityHandle owner, string name, BlobHandle signature)
    {
        return metadata.AddMemberReference(owner, metadata.GetOrAddString(name), signature);
    }
}

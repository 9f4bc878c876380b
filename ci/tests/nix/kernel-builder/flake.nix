# SPDX-License-Identifier: Apache-2.0
# Stands in for kernel-builder where there is no network: it takes what our flake hands over, refuses what the real one
# would refuse, and gives outputs of the same shape. What it "builds" is one file, which says what it was built from.
{
  outputs =
    { self }:
    let
      matrix = {
        x86_64-linux = [ "cpu" "cu126" "cu130" "cu132" ];
        aarch64-linux = [ "cpu" "cu126" "cu130" "cu132" ];
        aarch64-darwin = [ "cpu" ];
      };
      named = f: names: builtins.listToAttrs (map (name: { inherit name; value = f name; }) names);
      genKernelFlakeOutputs =
        { self, path }:
        let
          manifest = builtins.fromTOML (builtins.readFile (path + "/build.toml"));
          inherit (manifest.general) name backends;
          abi = builtins.replaceStrings [ "." ] [ "" ] manifest.torch.stable-abi;
          revision = self.shortRev or (throw "the flake is in no git repository");
          backendOf = compute: if compute == "cpu" then "cpu" else "cuda";
          variantsFor =
            system:
            map (compute: "torch-stable-abi${abi}-${compute}-${system}") (
              builtins.filter (compute: builtins.elem (backendOf compute) backends) matrix.${system}
            );
          product =
            system: what:
            derivation {
              inherit system;
              name = what;
              builder = "/bin/sh";
              args = [ "-c" ''echo "${what} of ${name} at ${revision}" > $out'' ];
            };
          ofSystems = f: named f (builtins.attrNames matrix);
        in
        {
          packages = ofSystems (system: rec {
            variants = variantsFor system;
            redistributable = named (product system) variants;
            bundle = product system "bundle";
            default = bundle;
            recorded = {
              inherit revision;
              directory = builtins.baseNameOf path;
              inside = builtins.substring 0 (builtins.stringLength (toString self)) (toString path) == toString self;
            };
          });
          devShells = ofSystems (system: {
            default = product system "default-shell";
            devShells = named (variant: product system "shell") (variantsFor system);
            testShells = named (variant: product system "test-shell") (variantsFor system);
          });
        };
    in
    {
      lib = { inherit genKernelFlakeOutputs; };
    };
}

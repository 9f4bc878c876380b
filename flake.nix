# SPDX-License-Identifier: Apache-2.0
# Every directory of kernels/ that has a build.toml, built by the Hub's kernel-builder. The lock names the builder's
# revision, and with it nixpkgs, the compilers, CUDA and torch.
{
  description = "Kernelworks: compute kernels for the Hugging Face Kernel Hub";

  # Where kernel-builder's own dependencies are kept built; without it torch is unpacked and CUDA packaged here.
  nixConfig = {
    extra-substituters = [ "https://huggingface.cachix.org" ];
    extra-trusted-public-keys = [
      "huggingface.cachix.org-1:ynTPbLS0W8ofXd9fDjk1KvoFky9K2jhxe6r4nXAkc/o="
    ];
  };

  inputs.kernel-builder.url = "github:huggingface/kernels";

  outputs =
    { self, kernel-builder }:
    let
      folder = ./kernels;
      isKernel = name: builtins.pathExists (folder + "/${name}/build.toml");
      names = builtins.filter isKernel (builtins.attrNames (builtins.readDir folder));

      build =
        name:
        kernel-builder.lib.genKernelFlakeOutputs {
          inherit self;
          path = folder + "/${name}";
        };
      outputsOf = builtins.listToAttrs (map (name: { inherit name; value = build name; }) names);
      systems = builtins.attrNames (builtins.head (builtins.attrValues outputsOf)).packages;

      # kernel-builder sorts a kernel's outputs by system; a flake of many kernels is sorted by system, then by kernel.
      ofEach =
        take:
        builtins.listToAttrs (
          map (system: {
            name = system;
            value = builtins.mapAttrs (_: outputs: take outputs.packages.${system} outputs.devShells.${system}) outputsOf;
          }) systems
        );
    in
    {
      # nix build .#rmsnorm: every variant for this system, the benchmarks and the card
      packages = ofEach (packages: shells: packages.bundle);

      # nix develop .#rmsnorm
      devShells = ofEach (packages: shells: shells.default);

      # nix build .#rmsnorm.redistributable.VARIANT, nix eval .#rmsnorm.variants and all else that kernel-builder has
      # for one kernel: nested sets, which `nix flake check` allows nowhere else.
      legacyPackages = ofEach (packages: shells: packages // { inherit (shells) devShells testShells; });
    };
}
